"""Random checkpoints in the shapes of published models, four bits, written a tensor at a time.

Values are as trained models have them, not as random ones are: scales with heavy tails, a few
channels a hundred times the others in the embeddings, norm weights from 0.01 to 300. Each layer is
a file of its own, so that a model of any size takes little memory to write.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, PretrainedConfig

__all__ = ["SHAPES", "BigShape", "write_checkpoint"]

GROUP = 128

OUTLIER_CHANNELS = 4
OUTLIER_FACTOR = 100.0

INT4_SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            },
        }
    },
    "ignore": ["lm_head"],
}

MXFP4_SCHEME = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        *("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"),
        "lm_head",
    ],
}

MXFP4_BLOCK = 32
MXFP4_EXPONENT = 121
"""Of most blocks: codes of up to 6, times 2^-6."""


@dataclass(frozen=True, slots=True)
class BigShape:
    """A published model's shape, without its weights."""

    name: str
    config: dict[str, Any]

    def library_config(self, layers: int | None) -> PretrainedConfig:
        """As the library has it, with fewer layers if wanted."""
        kind = LlamaConfig if self.name.startswith("llama") else GptOssConfig
        changed = {"num_hidden_layers": layers} if layers else {}
        return kind(**(self.config | changed), tie_word_embeddings=False)


SHAPES = (
    BigShape(
        "llama-3-8b",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        },
    ),
    BigShape("gpt-oss-20b", {"num_local_experts": 32, "num_hidden_layers": 24}),
)


def write_checkpoint(shape: BigShape, folder: Path, layers: int | None = None) -> int:
    """Write a checkpoint of random weights; the bytes of its weights."""
    config = shape.library_config(layers)
    scheme = MXFP4_SCHEME if config.model_type == "gpt_oss" else INT4_SCHEME
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(0)
    weight_map, total = dict[str, str](), 0
    for number, (part, names) in enumerate(_parts(model).items()):
        parameters = {name: model.get_parameter(name) for name in names}
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in parameters.items():
            tensors |= _stored(name, tuple(parameter.shape), scheme, random)
        file = f"model-{number:05}-{part}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    _write_json(folder / "config.json", config.to_dict() | {"quantization_config": scheme})
    return total


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _parts(model: torch.nn.Module) -> dict[str, list[str]]:
    """Names of parameters by file: a layer's together, the tables each alone."""
    parts = dict[str, list[str]]()
    for name, _ in model.named_parameters():
        words = name.split(".")
        part = f"layer-{words[2]}" if ".layers." in name else words[-2]
        parts.setdefault(part, []).append(name)
    return parts


def _stored(
    name: str, shape: tuple[int, ...], scheme: object, random: torch.Generator
) -> dict[str, torch.Tensor]:
    """The tensors by which a checkpoint holds one parameter."""
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return dict(_mxfp4(name, shape, random))
    if scheme is INT4_SCHEME and name.endswith("_proj.weight"):
        return dict(_int4(name.removesuffix(".weight"), shape, random))
    return {name: _plain(name, shape, random)}


def _int4(
    stem: str, shape: tuple[int, ...], random: torch.Generator
) -> Iterator[tuple[str, torch.Tensor]]:
    outputs, inputs = shape
    words = torch.randint(-(2**31), 2**31, (outputs, inputs // 8), generator=random)
    yield f"{stem}.weight_packed", words.to(torch.int32)
    tail = torch.randn(outputs, inputs // GROUP, generator=random).mul_(0.5).exp_()
    yield f"{stem}.weight_scale", (tail * inputs**-0.5 / 5).to(torch.bfloat16)
    yield f"{stem}.weight_shape", torch.tensor(shape)


def _mxfp4(
    name: str, shape: tuple[int, ...], random: torch.Generator
) -> Iterator[tuple[str, torch.Tensor]]:
    experts, inputs, outputs = shape
    blocks = (experts, outputs, inputs // MXFP4_BLOCK)
    byte = torch.uint8
    yield f"{name}_blocks", torch.randint(0, 256, (*blocks, 16), dtype=byte, generator=random)
    exponents = MXFP4_EXPONENT + torch.randn(blocks, generator=random).round_()
    yield f"{name}_scales", exponents.to(byte)


def _plain(name: str, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    numbers = torch.randn(shape, generator=random)
    if "norm" in name:
        numbers = numbers.mul_(0.3).exp_()
        numbers[:OUTLIER_CHANNELS] = torch.tensor([0.01, 300.0, -0.5, 20.0])
    elif "embed_tokens" in name:
        numbers *= 0.02
        numbers[:, :OUTLIER_CHANNELS] *= OUTLIER_FACTOR
    elif len(shape) == 2:
        numbers *= shape[-1] ** -0.5
    else:
        numbers *= 0.1
    return numbers.to(torch.bfloat16)
