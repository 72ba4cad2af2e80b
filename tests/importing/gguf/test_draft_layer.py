"""The drafting layer of a GGUF file, written as llama.cpp's converter writes it, drafts as the same
numbers in safetensors do."""

import json

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.draft_layer import Packaging
from molink.checkpoint.layer_sizes import draft_layer_of, planned_model
from molink.importing.gguf.file import import_gguf
from molink.importing.planned import planned_gguf
from tests.engine.drafting import tail_checkpoints
from tests.engine.drafting.tail_checkpoints import LAYERS, save_with_layer
from tests.engine.drafting.test_tail_layer import first_drafts
from tests.engine.model.quantized.blocks import TYPES, blocks_of, exact
from tests.importing.gguf_models import add_vocabulary

ARCHITECTURES = {"glm4_moe": "glm4moe", "deepseek_v3": "deepseek2", "qwen3_5_text": "qwen35"}
NEXTN = {
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head.norm",
}
PARTS = {one: one.replace("shared_head.", "shared_head_") for one in NEXTN.values()}
PARTS |= {"embed_tokens": "embed_tokens", "shared_head.head": "shared_head_head"}
SAID = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.value_length_mla": "v_head_dim",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}


class File:
    """A GGUF file of a checkpoint, and the exact numbers that it has for each stored tensor."""

    def __init__(self, directory, family, path):
        self.family, self.exact = family, {}
        self.config = json.loads((directory / "config.json").read_text())
        self.writer = gguf.GGUFWriter(path, ARCHITECTURES[family])
        self.heads = self.config["num_attention_heads"]
        arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == ARCHITECTURES[family])
        self.names = gguf.get_tensor_name_map(arch, LAYERS + 1)
        self.metadata()
        stored = load_file(directory / "model.safetensors")
        for name in [one for one in stored if ".experts." not in one]:
            self.add(name, stored[name])
        self.experts({name: stored[name] for name in stored if ".experts." in name})
        for write in ("header", "kv_data", "tensors"):
            getattr(self.writer, f"write_{write}_to_file")()
        self.writer.close()
        self.exact |= {name: stored[name] for name in stored if name not in self.exact}

    def metadata(self):
        own = {key: self.config[name] for key, name in SAID.items() if self.config.get(name)}
        size = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        rope = self.config["rope_parameters"]
        rotated = int(size * rope.get("partial_rotary_factor", 1.0))
        if self.family == "deepseek_v3":
            rotated = self.config["qk_rope_head_dim"]
            own["attention.key_length_mla"] = self.config["qk_nope_head_dim"] + rotated
        if self.family == "qwen3_5_text":
            values = self.config["linear_num_value_heads"]
            own["ssm.inner_size"] = values * self.config["linear_value_head_dim"]
        own |= {"rope.dimension_count": rotated, "rope.freq_base": float(rope["rope_theta"])}
        own |= {"block_count": LAYERS + 1, "nextn_predict_layers": 1}
        for key, value in own.items():
            kinds = {bool: "bool", int: "uint32", float: "float32"}
            name = f"{ARCHITECTURES[self.family]}.{key}"
            getattr(self.writer, f"add_{kinds[type(value)]}")(name, value)
        add_vocabulary(self.writer, self.config["vocab_size"])

    def add(self, name, plain):
        """A tensor of the checkpoint, as the converter of its class changes it."""
        plain, place = plain.float(), self.place(name)
        if name.endswith(".kv_b_proj.weight"):
            sizes = [self.config["qk_nope_head_dim"], self.config["v_head_dim"]]
            keys, values = plain.unflatten(0, (self.heads, -1)).split(sizes, 1)
            self.write(place.replace("kv_b", "k_b"), keys.transpose(1, 2).contiguous(), None)
            self.write(place.replace("kv_b", "v_b"), values.contiguous(), None)
        elif name.endswith(".A_log"):
            self.write(place, -plain.exp(), None)
        elif "conv1d" in name:
            self.write(place, plain.squeeze(1), None)
        elif self.family == "qwen3_5_text" and "norm" in name and "linear_attn" not in name:
            self.write(place, plain + 1, None)
        else:
            plain_parts = ("norm", "gate.weight", "in_proj_a", "in_proj_b")
            in_blocks = plain.dim() == 2 and not any(part in name for part in plain_parts)
            self.exact[name] = self.write(place, plain, "q8_0" if in_blocks else None)

    def experts(self, stored):
        prefixes = sorted({name.split(".experts.")[0] for name in stored})
        count = self.config.get("n_routed_experts")
        for prefix in prefixes:
            for part in ("gate", "up", "down"):
                own = [f"{prefix}.experts.{n}.{part}_proj.weight" for n in range(count)]
                place = f"blk.{prefix.split('.')[2]}.ffn_{part}_exps.weight"
                stack = torch.stack([stored[name].float() for name in own])
                self.exact |= dict(zip(own, self.write(place, stack, "q8_0"), strict=True))

    def write(self, name, plain, kind):
        if kind is None or plain.shape[-1] % 32:
            self.writer.add_tensor(name, plain.numpy())
            return plain
        raw = blocks_of(plain, kind)
        self.writer.add_tensor(name, raw.numpy(), raw_dtype=TYPES[kind])
        return exact(raw, kind)

    def place(self, name):
        stem, _, ending = name.rpartition(".")
        beside = f"model.layers.{LAYERS}."
        stem = beside + NEXTN[stem] if stem in NEXTN else stem
        stem = stem.replace("mtp.layers.0.", beside)
        if stem.startswith(beside) and (part := stem.removeprefix(beside)) in PARTS:
            return f"blk.{LAYERS}.nextn.{PARTS[part]}.{ending}"
        name = f"{stem}.{ending}".replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace(".dt_bias", ".dt_proj.bias")
        found = self.names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        return found


def quiet(done, total):
    assert 0 < done <= total


@pytest.fixture(params=ARCHITECTURES)
def made(request, tmp_path, monkeypatch):
    """A family, and the folder of a checkpoint of it with a drafting layer."""
    packaging, settings = tail_checkpoints.FAMILIES["qwen3_5_text"]
    alike = packaging, settings | {"linear_num_key_heads": 4}  # Heads that keep their order.
    monkeypatch.setitem(tail_checkpoints.FAMILIES, "qwen3_5_text", alike)
    save_with_layer(request.param, tmp_path)
    return request.param, tmp_path


def test_it_drafts_as_its_numbers_in_safetensors(made):
    family, folder = made
    file = File(folder, family, folder / "m.gguf")
    import_gguf(folder / "m.gguf", folder / "out", None, quiet)
    layer = draft_layer_of(open_checkpoint(str(folder / "out")))
    assert (layer.packaging, layer.objection) == (Packaging.NEXTN, "")
    assert not any("embed_tokens" in name or ".head." in name for name in layer.tensors)
    save_file(file.exact, folder / "model.safetensors", {"format": "pt"})
    plain = first_drafts(folder)
    assert len(plain) == 6 and first_drafts(folder / "out") == plain


def test_a_file_is_planned_with_its_layer(made):
    family, folder = made
    File(folder, family, folder / "m.gguf")
    import_gguf(folder / "m.gguf", folder / "out", None, quiet)
    planned, after = planned_gguf(folder / "m.gguf"), planned_model(str(folder / "out"))
    assert planned.drafts and planned.drafts == after.drafts
    assert planned.drafting.costs == after.drafting.costs != after.costs


def test_a_layer_with_a_part_that_is_not_known_is_left_out(tmp_path, caplog):
    save_with_layer("glm4_moe", tmp_path)
    path = tmp_path / "m.gguf"
    File(tmp_path, "glm4_moe", path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"nextn.hnorm", b"nextn.other"))
    import_gguf(path, tmp_path / "out", None, quiet)
    assert draft_layer_of(open_checkpoint(str(tmp_path / "out"))) is None
    assert "drafts is left out: MoLink knows no nextn.other.weight in one of a glm4_moe" in (
        caplog.text
    )
