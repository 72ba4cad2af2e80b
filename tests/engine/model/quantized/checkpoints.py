"""Tiny quantized checkpoints, and the library's model of exactly the weights that they mean."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.model.quantized.formats import Format, mxfp4
from tests.engine.tiny_models import save_tiny

SIZES = {"hidden_size": 64, "intermediate_size": 96}
"""A row of 96 is no whole block of 128, nor two groups of 64."""

KEPT = ("norm", "embed", "lm_head", "gate.weight", "router")
"""Words in the names of tensors that stay plain."""


def is_linear(name: str, tensor: torch.Tensor) -> bool:
    plain = any(word in name.replace("gate_proj", "") for word in KEPT)
    return tensor.dim() == 2 and name.endswith(".weight") and not plain


def save_quantized(model: str, directory: Path, form: Format, **overrides: Any) -> Any:
    """Write a checkpoint whose linears are in one format; returns the reference model."""
    plain = plain_tensors(model, directory, **overrides)
    stored, exact = {}, dict(plain)
    for name, tensor in plain.items():
        if not is_linear(name, tensor):
            stored[name] = tensor
            continue
        parts, exact[name] = form.write(tensor)
        stem = name.removesuffix(".weight")
        stored |= {f"{stem}{suffix}": part for suffix, part in parts.items()}
    return _written(directory, stored, exact, form.scheme)


def save_gpt_oss(directory: Path, **overrides: Any) -> Any:
    """Write a gpt-oss checkpoint with experts in MXFP4, as the published ones are."""
    plain = plain_tensors("gpt_oss", directory, **overrides)
    stored, exact = {}, dict(plain)
    for name, tensor in plain.items():
        if tensor.dim() != 3:
            stored[name] = tensor
            continue
        parts, values = mxfp4(tensor.transpose(1, 2))  # Plain [E, K, N], packed [E, N, K].
        exact[name] = values.transpose(1, 2)
        stored |= {f"{name}{suffix}": part for suffix, part in parts.items()}
    return _written(directory, stored, exact, {"quant_method": "mxfp4"})


def plain_tensors(model: str, directory: Path, **overrides: Any) -> dict[str, torch.Tensor]:
    save_tiny(model, directory, **{**SIZES, **overrides})
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (directory / "model.safetensors.index.json").unlink()
    return tensors


def _written(
    directory: Path,
    stored: dict[str, torch.Tensor],
    exact: dict[str, torch.Tensor],
    scheme: dict[str, Any],
) -> Any:
    """Three files with an index, and the library's own model of the exact weights."""
    reference = model_of(directory, exact)
    names = sorted(stored)
    weight_map = {}
    for number in range(3):
        file = f"model-{number}.safetensors"
        part = {name: stored[name].contiguous() for name in names[number::3]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    return reference


def model_of(directory: Path, exact: dict[str, torch.Tensor]) -> Any:
    path = directory / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in exact.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    config = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, config=config, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    path.unlink()
    return model.eval()
