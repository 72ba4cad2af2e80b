"""A faster computation stands for the library's only where each row proves it."""

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from molink.engine.kernels.cpu.norms import RootMeanSquareNorm, norm_trouble, replacement_for
from molink.engine.proof import (
    Reference,
    only_reading,
    probe_rows,
    probe_weights,
    reference_of,
)
from molink.errors import UnsupportedModelError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (48, 640)


def norm_of(kind, size: int, dtype: torch.dtype, scale: float = 1.0):
    module = kind(size, eps=1e-6).to(dtype)
    module.weight.data = probe_weights(size, dtype) * scale
    return module


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
def test_a_norm_of_weights_up_to_300_is_read_as_it_is(kind, size, dtype):
    module = norm_of(kind, size, dtype)
    x = probe_rows(8, size, dtype)
    reference = reference_of(module, x)
    adds_one = kind is Gemma3RMSNorm
    right, wrong = (
        RootMeanSquareNorm(module.weight.detach() + more, 1e-6) for more in (adds_one, not adds_one)
    )
    assert norm_trouble(module, right) is None
    assert "is off by" in norm_trouble(module, wrong)
    fast = replacement_for(module)
    with torch.inference_mode():
        assert torch.equal(fast(x), right(x))
        assert reference.trouble(wrong(x)) is not None


def test_a_norm_of_nothing_but_large_weights_is_still_read_right():
    """Its own weights tell little of one more or less; the probe's do."""
    module = Gemma3RMSNorm(640, eps=1e-6).to(torch.bfloat16)
    module.weight.data += 280
    fast = replacement_for(module)
    assert torch.equal(fast.scale.data, 1 + module.weight.data)


def test_two_readings_that_both_hold_end_the_load_and_are_named():
    with pytest.raises(UnsupportedModelError, match="between halves and pairs: please report"):
        only_reading({"halves": None, "pairs": None, "none": "is off"})
    assert only_reading({"halves": None, "pairs": "is off"}) == "halves"
    assert only_reading({"halves": "is off"}) is None


def test_a_small_channel_counts_beside_a_large_one():
    truth = torch.randn(4, 8, dtype=torch.float64)
    truth[:, 0] *= 1e4
    library = truth.float()
    got = library.clone()
    got[:, 3] *= 1.001
    reference = Reference(truth, library)
    assert reference.trouble(library) is None
    assert reference.trouble(got) is not None


def test_a_small_row_counts_beside_a_large_one():
    truth = torch.randn(4, 8, dtype=torch.float64) * torch.tensor([[1e4], [1e-4], [1.0], [0.0]])
    got = truth.float()
    got[1] *= 1.001
    assert "of row 1" in Reference(truth, truth.float()).trouble(got)
    assert Reference(truth, truth.float()).trouble(truth.float() + 1e-9) is not None  # Row 3.


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_does_not_hold(bad):
    truth = torch.ones(2, 4, dtype=torch.float64)
    got = truth.float()
    got[1, 2] = bad
    assert Reference(truth, truth.float()).trouble(got) is not None
    assert Reference(truth, truth.float()).trouble(truth.bfloat16()) is not None
    assert Reference(truth, truth.float()).trouble(truth.float()[:, :3]) is not None
