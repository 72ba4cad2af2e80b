"""What a model weighs, layer by layer: from its files, or from its shape."""

import json

import pytest

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.layer_sizes import draft_layer_of, planned_model
from molink.checkpoint.stage_size import stage_size_of
from molink.errors import CheckpointError, UserError
from molink.models import DEMO_MODEL_DIR

CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 4,
    "dtype": "bfloat16",
}


def write_model(directory, tensors, **config):
    """A checkpoint of headers only: nobody reads the numbers behind them."""
    directory.mkdir(exist_ok=True)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return str(directory)


TENSORS = {
    "model.embed_tokens.weight": 500,
    "model.layers.0.self_attn.q_proj.weight": 100,
    "model.layers.0.mlp.gate_proj.weight": 100,
    "model.layers.1.self_attn.q_proj.weight": 100,
    "model.layers.1.mlp.experts.0.up_proj.weight": 400,
    "model.layers.2.self_attn.q_proj.weight": 100,
    "model.layers.2.mlp.experts.gate_up_proj": 400,
    "model.norm.weight": 8,
    "lm_head.weight": 400,
}


def test_layers_of_a_mixture_weigh_and_work_differently(tmp_path):
    """A row reads a quarter of the experts: 100 + 100 of 500 bytes, as much as the dense layer."""
    planned = planned_model(write_model(tmp_path / "m", TENSORS))
    assert planned.measured and planned.cost.layer_bytes == (200, 500, 500)
    assert planned.cost.layer_work == ()
    assert (planned.cost.head_bytes, planned.cost.tail_bytes, planned.cost.tied) == (
        500,
        408,
        False,
    )
    assert planned.cost.kv_bytes == 2 * 1 * 4 * 2 and planned.cost.row_bytes == 16
    dense = TENSORS | {"model.layers.0.mlp.gate_proj.weight": 300}
    assert planned_model(write_model(tmp_path / "d", dense)).cost.layer_work == (2.0, 1.0, 1.0)


def test_without_an_output_matrix_it_is_the_embedding_table(tmp_path):
    tied = {name: size for name, size in TENSORS.items() if name != "lm_head.weight"}
    cost = planned_model(write_model(tmp_path / "m", tied)).cost
    assert cost.tied and (cost.head_bytes, cost.tail_bytes) == (500, 508)
    assert cost.ends_bytes(True, True) == 508


def test_tables_for_every_layer_are_held_in_parts_and_fetched_whole(tmp_path):
    """As in Gemma 4 E2B, whose last layers share KV besides."""
    inputs = {
        "model.embed_tokens_per_layer.weight": 600,
        "model.per_layer_model_projection.weight": 60,
        "model.per_layer_projection_norm.weight": 30,
    }
    kinds = {"layer_types": ["full_attention"] * 3, "num_kv_shared_layers": 1}
    kinds |= {"hidden_size_per_layer_input": 10}
    cost = planned_model(write_model(tmp_path / "m", TENSORS | inputs, **kinds)).cost
    assert cost.layer_bytes == (200 + 230, 500 + 230, 500 + 230)
    assert cost.fetched_layers == (200, 500, 500) and cost.each_file_bytes == 690
    assert cost.embeds_everywhere and cost.together == ((1, 3),) and cost.layer_work == ()
    assert cost.stage_bytes(1, 3) == 500 + 2 * 730 + 408 and cost.row_bytes == 16 + 4
    assert cost.fetched_bytes(1, 3) == 500 + 1000 + 408 + 690


def test_the_demo_model_from_its_file():
    planned = planned_model(str(DEMO_MODEL_DIR))
    cost = planned.cost
    assert planned.measured and cost.layers == 9 and cost.tied and cost.uniform
    file_bytes = (DEMO_MODEL_DIR / "model.safetensors").stat().st_size
    assert sum(cost.layer_bytes) + cost.tail_bytes == pytest.approx(file_bytes, rel=1e-3)
    shaped = planned_model(str(DEMO_MODEL_DIR / "config.json"))
    assert not shaped.measured
    assert shaped.cost.layer_bytes[0] == pytest.approx(cost.layer_bytes[0], rel=0.01)
    assert shaped.cost.kv_bytes == cost.kv_bytes


def test_without_weights_the_shape_must_do(tmp_path):
    directory = write_model(tmp_path / "m", TENSORS)
    (tmp_path / "m" / "model.safetensors").unlink()
    planned = planned_model(directory)
    assert not planned.measured and len(set(planned.cost.layer_bytes)) == 1


def test_a_known_name_needs_no_file():
    cost = planned_model("Qwen-7B").cost
    assert cost.layers == 32 and cost.uniform and cost.layer_bytes[0] == 404_750_336


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_kv_in_int8_takes_a_byte_a_number_and_two_a_scale(tmp_path, element_bytes):
    directory = write_model(tmp_path / "m", TENSORS)
    for model in ("llama-3-8b", directory):
        planned = planned_model(model, "int8")
        shape, cost = planned.shape, planned.costs[element_bytes]
        assert cost.kv_bytes == 2 * shape.kv_heads * (shape.head_size + 2)
        plain = planned_model(model).costs[element_bytes]
        assert plain.kv_bytes == 2 * shape.kv_heads * shape.head_size * element_bytes
        assert plain.layer_bytes == cost.layer_bytes


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}']
)
def test_a_file_that_is_no_checkpoint(tmp_path, content):
    directory = write_model(tmp_path / "m", TENSORS)
    (tmp_path / "m" / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        planned_model(directory)


def test_files_of_another_model_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"hold 3 layers, its config\.json names 4: fetch"):
        planned_model(write_model(tmp_path / "m", TENSORS, num_hidden_layers=4))


def test_no_such_model(tmp_path):
    with pytest.raises(UserError, match="there is no model directory"):
        planned_model(str(tmp_path / "none" / "at" / "all"))


def test_a_layer_of_absurd_size_is_refused_in_a_sentence(tmp_path):
    tensors = TENSORS | {"model.layers.1.self_attn.q_proj.weight": 10**9}
    with pytest.raises(UserError, match=r"make no plan .*: fetch it again"):
        planned_model(write_model(tmp_path / "m", tensors))


def nextn(number: int) -> dict[str, int]:
    parts = {"enorm": 16, "hnorm": 16, "eh_proj": 256, "shared_head.norm": 16}
    block = {"self_attn.q_proj": 100, "mlp.experts.gate_up_proj": 400}
    named = {f"model.layers.{number}.{part}.weight": size for part, size in parts.items()}
    blocks = {f"model.layers.{number}.{part}": size for part, size in block.items()}
    blocks = {n if "experts" in n else f"{n}.weight": size for n, size in blocks.items()}
    return {**named, **blocks, f"model.layers.{number}.embed_tokens.weight": 500}


def mtp() -> dict[str, int]:
    own = {"fc": 256, "pre_fc_norm_embedding": 16, "pre_fc_norm_hidden": 16, "norm": 16}
    named = {f"mtp.{part}.weight": size for part, size in own.items()}
    block = {"self_attn.q_proj.weight": 100, "mlp.experts.gate_up_proj": 400}
    return named | {f"mtp.layers.0.{part}": size for part, size in block.items()}


@pytest.mark.parametrize("own", [nextn(3), mtp()])
def test_a_layer_that_drafts_is_one_layer_more_of_the_tail(own, tmp_path):
    plain = planned_model(write_model(tmp_path / "plain", TENSORS))
    planned = planned_model(write_model(tmp_path / "own", TENSORS | own))
    assert planned.cost == plain.cost  # Nobody drafts there unless it is asked for.
    assert plain.drafting.cost == plain.cost
    size = 256 + 3 * 16 + 500
    cost, kv_bytes = planned.drafting.cost, plain.cost.kv_bytes
    assert cost.layer_bytes == (200, 500, 500 + size)
    assert cost.layer_kv_bytes == (kv_bytes, kv_bytes, 2 * kv_bytes)
    assert cost.fetched_bytes(2, 3) == 500 + size + 500 + 408  # Embeddings, too.
    assert cost.stage_bytes(0, 2) == plain.cost.stage_bytes(0, 2)
    assert cost.stage_bytes(0, 3) == plain.cost.stage_bytes(0, 3) + size  # Embeddings once.


def test_a_layer_that_is_half_there_is_not_planned(tmp_path):
    own = {name: size for name, size in mtp().items() if "fc." not in name}
    planned = planned_model(write_model(tmp_path / "m", TENSORS | own))
    assert planned.drafts == {}
    layer = draft_layer_of(open_checkpoint(str(tmp_path / "m")))
    assert layer is not None
    assert layer.objection == "its drafting layer lacks mtp.fc.weight"


def test_a_layer_too_many_is_told_as_before(tmp_path):
    extra = {"model.layers.3.self_attn.q_proj.weight": 100}
    with pytest.raises(UserError, match=r"hold 4 layers, its config\.json names 3"):
        planned_model(write_model(tmp_path / "m", TENSORS | extra))


def test_the_tails_size_counts_the_layer_and_its_kv(tmp_path):
    checkpoint = open_checkpoint(write_model(tmp_path / "m", TENSORS | mtp()))
    plain, drafting = (stage_size_of(checkpoint, (1, 3), drafts) for drafts in (False, True))
    assert plain is not None and drafting is not None
    more = drafting.held_bytes(2, 10) - plain.held_bytes(2, 10)
    assert more == 256 + 3 * 16 + 500 + 500 + 10 * 2 * 1 * 4 * 2
