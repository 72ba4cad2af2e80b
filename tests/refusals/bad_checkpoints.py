"""Checkpoints that somebody has broken, each in one way."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.engine.model.quantized.checkpoints import save_quantized
from tests.engine.model.quantized.formats import FORMATS

FILE = "model-0.safetensors"
PROJECTION = "model.layers.1.self_attn.q_proj"

Break = Callable[[Path], object]


def good(folder: Path) -> None:
    """A tiny llama of four bits in groups of 32, in three files."""
    save_quantized("llama", folder, FORMATS["pack-quantized asymmetric"])


# -- config.json ----------------------------------------------------------------------------------


def json_file(name: str, change: Callable[[Any], Any]) -> Break:
    def broken(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(change(content)))

    return broken


def config(**changed: Any) -> Break:
    return json_file("config.json", lambda content: content | changed)


def scheme(**changed: Any) -> Break:
    def change(content: Any) -> Any:
        return content | {"quantization_config": content["quantization_config"] | changed}

    return json_file("config.json", change)


def weights(group: int, bits: int, form: str = "pack-quantized") -> dict[str, Any]:
    """A group of layers as compressed-tensors describes it."""
    said = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
    return {"targets": ["Linear"], "format": form, "weights": said | {"symmetric": False}}


def text(name: str, content: str) -> Break:
    return lambda folder: (folder / name).write_text(content)


# -- safetensors ----------------------------------------------------------------------------------


def table(change: Callable[[dict[str, Any]], object]) -> Break:
    """One file with another table, and the same data."""

    def broken(folder: Path) -> None:
        raw = (folder / FILE).read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        content = json.loads(raw[8 : 8 + size])
        change(content)
        new = json.dumps(content).encode()
        (folder / FILE).write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return broken


def each(change: Callable[[dict[str, Any]], object]) -> Break:
    """The same change of all entries of a table."""
    return table(lambda content: [change(content[name]) for name in content if name[0] != "_"])


def raw_bytes(change: Callable[[bytes], bytes]) -> Break:
    def broken(folder: Path) -> None:
        (folder / FILE).write_bytes(change((folder / FILE).read_bytes()))

    return broken


def part(suffix: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Break:
    """One tensor of a quantized weight anew, or away."""

    def broken(folder: Path) -> None:
        name = PROJECTION + suffix
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        file = folder / index["weight_map"][name]
        tensors = load_file(file)
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed.contiguous()
        save_file(tensors, file, metadata={"format": "pt"})

    return broken


DEEP = "[" * 200_000
FAR = {"weight_map": {"lm_head.weight": "../../../etc/passwd"}}

BAD: dict[str, Break] = {
    "a scheme that is not read": scheme(quant_method="bitsandbytes"),
    "a scheme that nobody knows": scheme(quant_method="\x1b[31mnew\n" * 50),
    "no scheme for quantized weights": config(quantization_config=None),
    "a scheme that is a list": config(quantization_config=[4]),
    "two numbers of bits at once": scheme(config_groups={"a": weights(32, 4), "b": weights(32, 8)}),
    "two formats at once": scheme(
        config_groups={"a": weights(32, 4), "b": weights(32, 8, "float-quantized")}
    ),
    "three bits": scheme(config_groups={"a": weights(32, 3)}),
    "another scheme than that of the tensors": scheme(quant_method="awq", bits=4),
    "a config cut short": text("config.json", '{"model_type": "llama", "hid'),
    "a config that is a list": text("config.json", "[]"),
    "a config of 200,000 brackets": text("config.json", DEEP),
    "layers in words": config(num_hidden_layers="many"),
    "2^60 layers": config(num_hidden_layers=2**60),
    "a hidden size below zero": config(hidden_size=-64),
    "another hidden size": config(hidden_size=128),
    "no attention heads": config(num_attention_heads=0),
    "an index cut short": text("model.safetensors.index.json", '{"weight_map": {"lm'),
    "an index of other places": text("model.safetensors.index.json", json.dumps(FAR)),
    "a file that is missing": lambda folder: (folder / FILE).unlink(),
    "a file cut short": raw_bytes(lambda raw: raw[:-100]),
    "a table cut short": raw_bytes(lambda raw: raw[:200]),
    "a table of 2^62 bytes": raw_bytes(lambda raw: struct.pack("<Q", 2**62) + raw[8:]),
    "a table of no JSON": raw_bytes(lambda raw: raw[:8] + b"\xff" * (len(raw) - 8)),
    "an empty file": raw_bytes(lambda raw: b""),
    "tensors of 2^60 numbers": each(lambda entry: entry.update(shape=[2**60, 2**60])),
    "tensors out of bounds": each(lambda entry: entry.update(data_offsets=[2**50, 2**50 + 64])),
    "tensors one upon the other": each(lambda entry: entry.update(data_offsets=[0, 64])),
    "tensors that end before they begin": each(lambda entry: entry["data_offsets"].reverse()),
    "a type that nobody knows": each(lambda entry: entry.update(dtype="Q3_7")),
    "a scale too few": part(".weight_scale", lambda scale: scale[:, :-1]),
    "a row of scales too few": part(".weight_scale", lambda scale: scale[:-1]),
    "groups that do not divide the row": part(".weight_scale", lambda s: s[:, :1].repeat(1, 3)),
    "no scales": part(".weight_scale", lambda scale: None),
    "scales of integers": part(".weight_scale", lambda scale: scale.int()),
    "zero points of another group": part(".weight_zero_point", lambda zero: zero[:, :-1]),
    "half of the codes": part(".weight_packed", lambda codes: codes[:, :4]),
    "another shape": part(".weight_shape", lambda shape: shape * 2),
}
"""What is broken, and how."""
