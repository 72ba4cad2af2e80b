"""How fast does a layer of experts compute: the library's function, ours, ours in four bits?

    python -m tools.experiments.quantized.expert_speed --out DIR

One layer of 32 experts, 8 of them for each row, 2,048 to 768 and back, with random weights and a
random choice of experts. The conditions take turns, and what counts is the processor time of one
thread, the best of some rounds. All experts together are larger than the caches.
"""

import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from torch import nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from molink.engine.kernels.packed_weights import Int4Weight
from molink.engine.layers.experts import EXPERTS_NAME, STACK_NAMES, ExpertStack
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.model.packing_experts import pack_experts
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

ROWS = (1, 4, 8, 16, 64, 256)
GROUP = 128


@experiment
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16")
@click.option("--rounds", default=9, show_default=True, help="Of which the best counts.")
def main(out: Path, dtype: str, rounds: int) -> None:
    """Print the milliseconds of a layer of experts by function and number of rows."""
    torch.set_num_threads(1)
    number: torch.dtype = getattr(torch, dtype)
    layers = {
        "the library's": _plain(number, "grouped_mm"),
        "ours": _packed(_plain(number, EXPERTS_NAME)),
        f"ours, int4 in groups of {GROUP}": _packed(_quantized(_plain(number, EXPERTS_NAME))),
    }
    times: dict[str, dict[int, float]] = {name: {} for name in layers}
    for rows in ROWS:
        arguments = _arguments(rows, number)
        for _ in range(rounds):
            for name, layer in layers.items():
                took = _time(layer, arguments)
                times[name][rows] = min(took, times[name].get(rows, took))
    write_report(out, "expert_speed", {"dtype": dtype, "ms": times}, f"expert_speed-{dtype}")
    first = times["the library's"]
    lines = [
        [name, *(f"{t[n]:.2f} ({first[n] / t[n]:.1f} x)" for n in ROWS)]
        for name, t in times.items()
    ]
    show(f"{dtype}\n\n{markdown_table(['function', *map(str, ROWS)], lines)}")


def _plain(dtype: torch.dtype, implementation: str) -> nn.Module:
    config = Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, num_experts=32, num_experts_per_tok=8
    )
    config._experts_implementation = implementation
    layer: nn.Module = Qwen3MoeExperts(config)
    generator = torch.Generator().manual_seed(0)
    for name, stack in layer.named_parameters():
        values = torch.randn(stack.shape, generator=generator) * stack.shape[-1] ** -0.5
        setattr(layer, name, nn.Parameter(values.to(dtype), requires_grad=False))
    return layer


def _packed(layer: nn.Module) -> nn.Module:
    pack_experts(layer)
    return layer


def _quantized(layer: nn.Module) -> nn.Module:
    """The layer with random codes of four bits for weights."""
    generator = torch.Generator().manual_seed(0)
    for name in STACK_NAMES:
        stack = layer._parameters.pop(name, None)
        if stack is not None:
            weights = [_random_weight(tuple(one.shape), stack.dtype, generator) for one in stack]
            linears = [QuantizedLinear(weight, None, stack.dtype) for weight in weights]
            setattr(layer, name, ExpertStack(linears))
    return layer


def _random_weight(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Int4Weight:
    outputs, inputs = shape
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, generator=generator)
    scale = torch.rand(outputs, inputs // GROUP, generator=generator).to(dtype) * 0.01
    return Int4Weight(codes, scale, torch.zeros_like(scale))


def _arguments(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 2048, generator=generator).to(dtype)
    weights, index = torch.rand(rows, 32, generator=generator).topk(8)
    return hidden, index, weights.to(dtype)


def _time(layer: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> float:
    with torch.inference_mode():
        began = time.process_time()
        layer(*arguments)
        return (time.process_time() - began) * 1e3


if __name__ == "__main__":
    main()
