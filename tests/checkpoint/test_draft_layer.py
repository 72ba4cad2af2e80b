"""A checkpoint's drafting layer is known by the names of its tensors, whole or not."""

import json
from itertools import chain

import pytest

from molink.checkpoint.draft_layer import DraftLayer, LayerKind, Packaging, draft_layer, measured
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.safetensors_header import StoredTensor
from molink.checkpoint.shard_plan import WeightsLayout, plan_shards
from tests.engine.tiny_models import save_tiny

MTP = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
NEXTN = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
NORMS = ("input_layernorm", "post_attention_layernorm")
ATTENTION = tuple(f"self_attn.{part}_proj" for part in "qkvo")
DENSE = tuple(f"mlp.{part}_proj" for part in ("gate", "up", "down"))
EXPERTS = ("mlp.gate", *(f"mlp.experts.{n}.{part[4:]}" for n in range(4) for part in DENSE))

LAYERS = 4


def block(prefix: str, parts: tuple[str, ...], end: str = ".weight") -> list[str]:
    return [f"{prefix}{part}{end}" for part in parts]


def model_names(mlp: tuple[str, ...] = DENSE, end: str = ".weight") -> list[str]:
    """A hybrid whose last layer alone attends."""
    recurs = (*NORMS, "linear_attn.in_proj", *mlp)
    layers = [(*NORMS, *ATTENTION, *mlp) if n == LAYERS - 1 else recurs for n in range(LAYERS)]
    of_layers = [block(f"model.layers.{n}.", parts, end) for n, parts in enumerate(layers)]
    return ["model.embed_tokens.weight", "model.norm.weight", *chain(*of_layers)]


def mtp(mlp: tuple[str, ...] = DENSE) -> list[str]:
    return block("mtp.", MTP) + block("mtp.layers.0.", (*NORMS, *ATTENTION, *mlp))


def nextn(mlp: tuple[str, ...] = DENSE) -> list[str]:
    return block(f"model.layers.{LAYERS}.", (*NEXTN, *NORMS, *ATTENTION, *mlp))


CONFIG = {"model_type": "qwen3_5_text", "num_hidden_layers": LAYERS, "num_experts": 4}


@pytest.mark.parametrize(
    ("own", "packaging", "prefix", "first"),
    [
        (mtp, Packaging.MTP, "mtp.", "mtp.fc.weight"),
        (nextn, Packaging.NEXTN, "model.layers.4.", "model.layers.4.eh_proj.weight"),
    ],
)
@pytest.mark.parametrize(("mlp", "kind"), [(DENSE, LayerKind.DENSE), (EXPERTS, LayerKind.EXPERTS)])
def test_a_whole_layer_is_found(own, packaging, prefix, first, mlp, kind):
    layer = draft_layer(CONFIG, [*model_names(mlp), *own(mlp)])
    assert layer is not None
    assert (layer.packaging, layer.prefix, layer.kind) == (packaging, prefix, kind)
    assert (set(layer.tensors), layer.objection) == (set(own(mlp)), "")
    assert layer.parts["projection"] == first
    assert layer.keeps_kv


def test_a_model_without_one_has_none():
    assert draft_layer(CONFIG, model_names()) is None
    extra = block(f"model.layers.{LAYERS}.", (*NORMS, *ATTENTION, *DENSE))
    assert draft_layer(CONFIG, [*model_names(), *extra]) is None


@pytest.mark.parametrize("own", [mtp, nextn])
def test_each_tensor_that_is_not_there_is_named(own):
    for lost in own():
        layer = draft_layer(CONFIG, [*model_names(), *(one for one in own() if one != lost)])
        if lost.endswith("eh_proj.weight"):
            assert layer is None  # Nothing says then that the layer is to draft.
            continue
        assert layer is not None
        assert layer.missing == (lost,)
        assert layer.objection == f"its drafting layer lacks {lost}"


def test_half_a_layer_is_told_with_how_much_it_lacks():
    layer = draft_layer(CONFIG, [*model_names(), *block("mtp.", MTP)])
    assert layer is not None
    assert len(layer.missing) == len((*NORMS, *ATTENTION, *DENSE))
    assert "input_layernorm.weight and 8 other tensors" in layer.objection


def test_an_expert_that_is_not_there_is_named():
    own = [one for one in mtp(EXPERTS) if ".experts.3." not in one]
    layer = draft_layer(CONFIG, [*model_names(EXPERTS), *own])
    assert layer is not None
    assert layer.missing == tuple(
        f"mtp.layers.0.mlp.experts.3.{part}_proj.weight" for part in ("down", "gate", "up")
    )


def test_experts_may_be_packed_in_the_model_and_not_in_the_layer():
    packed = ("mlp.gate", "mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    layer = draft_layer(CONFIG, [*model_names(packed), *mtp(EXPERTS)])
    assert layer is not None
    assert (layer.objection, layer.kind) == ("", LayerKind.EXPERTS)


def test_a_plain_layer_beside_a_quantized_model_is_whole():
    """As quantized checkpoints have it; GPTQ's tools add a bias to each of their own weights."""
    codes = [name for end in (".qweight", ".scales", ".bias") for name in model_names(end=end)]
    layer = draft_layer(CONFIG, [*codes, *mtp()])
    assert layer is not None
    assert layer.objection == ""


def test_bytes_are_counted_by_stored_formats():
    """The config says int4, the layer is stored in 16 bits."""
    layer = draft_layer(CONFIG, [*model_names(end=".qweight"), *mtp()])
    assert layer is not None
    stored = [
        StoredTensor(name, "BF16", (8, 4), 64 * n, 64 * n + 64) for n, name in enumerate(mtp())
    ]
    other = StoredTensor("model.layers.0.a.weight", "BF16", (8, 4), 64 * 99, 64 * 100)
    declared = DeclaredQuantization(method="gptq", bits=4, group=128)
    sized = measured("m", layer, [*stored, other], declared)
    assert (sized.held_bytes(2), sized.held_bytes(4)) == (64 * len(mtp()), 128 * len(mtp()))
    assert (sized.file_bytes, layer.file_bytes) == (64 * len(mtp()), 0)


def test_further_layers_and_copies_are_left_out():
    further = block("mtp.layers.1.", ATTENTION)
    layer = draft_layer(CONFIG, [*model_names(), *mtp(), *further])
    assert layer is not None
    assert set(layer.tensors) == set(mtp())
    copies = block(f"model.layers.{LAYERS}.", ("embed_tokens", "shared_head.head"))
    layer = draft_layer(CONFIG, [*model_names(), *nextn(), *copies, "model.layers.5.a.weight"])
    assert layer is not None
    assert set(layer.tensors) == set(nextn())


def test_a_stage_without_attention_knows_the_parts_around_the_block_alone():
    held = [name for name in model_names() if f".{LAYERS - 1}." not in name]
    layer = draft_layer(CONFIG, [*held, *block("mtp.", MTP)])
    assert layer is not None
    assert layer.missing == ()


def assistant_names(layers: int) -> list[str]:
    parts = ("self_attn.q_proj", "self_attn.o_proj", *DENSE)
    own = chain(*(block(f"model.layers.{n}.", parts) for n in range(layers)))
    around = ("pre_projection", "post_projection", "model.norm", "model.embed_tokens")
    return [*own, *block("", around)]


@pytest.mark.parametrize("kind", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_gemmas_assistant_is_a_checkpoint_of_its_own(kind):
    config = {"model_type": kind, "text_config": {"num_hidden_layers": 4}}
    layer = draft_layer(config, assistant_names(4))
    assert layer is not None
    assert (layer.packaging, layer.kind) == (Packaging.GEMMA_ASSISTANT, LayerKind.QUERIES)
    assert (layer.missing, layer.keeps_kv) == ((), False)
    half = draft_layer(config, assistant_names(3))
    assert half is not None
    assert "model.layers.3.mlp.down_proj.weight" in half.missing
    ordered = draft_layer(config | {"use_ordered_embeddings": True}, assistant_names(4))
    assert ordered is not None
    assert {one.split(".")[1] for one in ordered.missing} == {"centroids", "token_ordering"}


@pytest.mark.parametrize("own", [mtp, nextn])
def test_the_tail_of_a_ring_that_drafts_there_gets_the_layer_and_the_embeddings(own):
    weight_map = dict.fromkeys([*model_names(), "lm_head.weight", *own()], "f")
    layout = WeightsLayout(LAYERS, False)
    tail = range(2, LAYERS)
    plain = set(plan_shards(weight_map, layout, tail).weight_map)
    drafting = set(plan_shards(weight_map, layout, tail, drafts=True).weight_map)
    assert drafting - plain == {*own(), "model.embed_tokens.weight"}
    for others in (range(2), range(1, 3)):
        assert plan_shards(weight_map, layout, others, drafts=True) == plan_shards(
            weight_map, layout, others
        )


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3", "qwen3_next"])
def test_layers_of_the_library_have_the_parts_that_are_looked_for(name, tmp_path):
    """A tiny checkpoint as the library writes it, its last layer with
    attention once more as the drafting one."""
    save_tiny(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = list(index["weight_map"])
    last = max(int(one.split(".")[2]) for one in names if ".self_attn." in one)
    prefix = f"model.layers.{config['num_hidden_layers']}."
    prefix = "mtp.layers.0." if name == "qwen3_next" else prefix
    around = block("mtp.", MTP) if name == "qwen3_next" else block(prefix, NEXTN)
    begin = f"model.layers.{last}."
    own = [prefix + one.removeprefix(begin) for one in names if one.startswith(begin)] + around
    layer = draft_layer(config, [*names, *own])
    assert isinstance(layer, DraftLayer)
    assert (set(layer.tensors), layer.missing) == (set(own), ())
