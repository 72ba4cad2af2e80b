"""The attention kernel compiles for every RTX card, fits into its shared memory, does not spill and
uses the matrix units: proven by Triton's own compiler, without a card."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")

from tools.experiments.cards.compiled_kernels import CARDS, compiled, kind

FP16, BF16, INT8 = torch.float16, torch.bfloat16, torch.int8

KERNELS = {
    "decode of heads of 128": (kind((4, 128, 128), BF16), True),
    "spans of heads of 128 over int8": (kind((4, 128, 128), BF16, INT8), False),
    "spans of heads of 256": (kind((4, 256, 256), FP16), False),
    "decode of a group of 64 over int8": (kind((64, 128, 128), FP16, INT8), True),
}
"""What takes most of each kind; all others are compiled by tools.experiments.cards."""


@pytest.fixture(autouse=True)
def compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("capability", CARDS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_fits_every_card(kernel, capability):
    made = compiled(*KERNELS[kernel], capability)
    assert made.fits, made


def test_tiles_that_are_too_large_are_noticed():
    """Larger tiles of fp32 spill, and have no matrix units: the limits can fail."""
    made = compiled(kind((64, 128, 128), torch.float32), False, 86)
    assert not made.fits and made.matrix_instructions == 0
