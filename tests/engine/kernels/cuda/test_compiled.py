"""Our kernels compile for every RTX card, fit into its shared memory, do not spill and use the
matrix units where they multiply: proven by Triton's own compiler, without a card."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")

from tests.sweeps import swept
from tools.experiments.cards.compiled_fused import cases, compiled_case
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


FUSED = {
    "norm_rows": lambda made: made["COLUMNS"] == 16384,
    "gate_rows": lambda made: made["ALTERNATING"],
    "turn_and_store": lambda made: made["A"] == 256 and made["HAS_SCALES"],
    "multiply_experts": lambda made: "w_stride_i" in made,
}
"""Of the fused kernels, likewise."""


@pytest.mark.parametrize("capability", swept(CARDS, 86))
@pytest.mark.parametrize("kernel", FUSED)
def test_a_fused_kernel_fits_every_card(kernel, capability):
    case = next(
        case
        for case in cases()
        if case.kernel == kernel and case.dtype is BF16 and FUSED[kernel](case.constants)
    )
    made = compiled_case(case, capability)
    assert made.is_small and (made.matrix_instructions > 0) == (kernel == "multiply_experts"), made


@pytest.mark.parametrize("capability", swept(CARDS, 86))
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_fits_every_card(kernel, capability):
    made = compiled(*KERNELS[kernel], capability)
    assert made.fits, made


def test_tiles_that_are_too_large_are_noticed():
    """Larger tiles of fp32 spill, and have no matrix units: the limits can fail."""
    made = compiled(kind((64, 128, 128), torch.float32), False, 86)
    assert not made.fits and made.matrix_instructions == 0
