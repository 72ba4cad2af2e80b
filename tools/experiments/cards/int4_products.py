"""Is torch's product with four-bit weights right on this card, and faster than with sixteen?

    python -m tools.experiments.cards.int4_products --out DIR

A matrix of an 8B model, 14,336 outputs of 4,096 inputs, in groups of 32 and of 128. The error is
relative to the largest output of the product with the unpacked matrix; a stage takes the kernel up
to 0.02. Times are the card's own, of 1 to 512 rows.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from molink.engine.kernels.packed_weights import Int4Weight
from molink.engine.layers.quantized_linear import QuantizedLinear, use_cuda_kernels
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.cards.timing import device_us
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

OUTPUTS, INPUTS = 14_336, 4_096
GROUPS, ROWS = (32, 128), (1, 8, 64, 512)

PREDICTED_US = {1: (8, 40), 8: (10, 80), 64: (20, 300), 512: (100, 2_500)}
"""Of an H200, which reads the 29 MB of codes in 6 us: the kernel was made for few rows."""

PREDICTED_PLAIN_US = {1: (25, 60), 8: (25, 60), 64: (25, 80), 512: (80, 250)}
"""With 16 bits: 117 MB, 24 us."""

PREDICTED_ERROR = (0.0, 0.01)


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print errors and microseconds."""
    keep(out, "int4_products", torch.device(device), _figures(torch.device(device)))


def _figures(device: torch.device) -> Iterator[Figure]:
    on_card = device.type == "cuda"
    outputs, inputs, rows = (OUTPUTS, INPUTS, ROWS) if on_card else (64, 256, (1, 8))
    groups = GROUPS if on_card else GROUPS[:1]
    for group in groups:
        layer = QuantizedLinear(_weight(outputs, inputs, group, device), None, torch.bfloat16)
        chosen = _chosen(layer)
        yield Figure(f"groups of {group} are multiplied by", type(chosen).__name__)
        for count in rows:
            x = torch.randn(count, inputs, device=device).to(torch.bfloat16)
            name = f"groups of {group}, {count} rows"
            with torch.inference_mode():
                error = _error(chosen(x), layer(x))
                yield Figure(f"{name}, error", error, "", *PREDICTED_ERROR)
                us = device_us(partial(chosen, x), device)
            yield Figure(name, us, "us", *PREDICTED_US[count])
    yield from _plain(outputs, inputs, rows, device)


def _plain(
    outputs: int, inputs: int, rows: tuple[int, ...], device: torch.device
) -> Iterator[Figure]:
    weight = torch.randn(outputs, inputs, device=device).to(torch.bfloat16)
    for count in rows:
        x = torch.randn(count, inputs, device=device).to(torch.bfloat16)
        us = device_us(partial(nn.functional.linear, x, weight), device)
        yield Figure(f"16 bits, {count} rows", us, "us", *PREDICTED_PLAIN_US[count])


def _weight(outputs: int, inputs: int, group: int, device: torch.device) -> Int4Weight:
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device=device)
    scale = torch.rand(outputs, inputs // group, device=device) * 0.02
    zero = torch.randn(outputs, inputs // group, device=device) * 0.01
    return Int4Weight(codes, scale.to(torch.bfloat16), zero.to(torch.bfloat16))


def _chosen(layer: QuantizedLinear) -> nn.Module:
    """What a stage computes such a layer with on a card."""
    model = nn.Sequential(layer)
    if layer.quantized.codes.device.type == "cuda":
        use_cuda_kernels(model)
    return model[0]


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())


if __name__ == "__main__":
    main()
