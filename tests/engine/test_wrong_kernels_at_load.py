"""Stages that load with a kernel that is wrong although it passed its proof: the trial with the
weights that serve finds it and says so, and what is served is what the library computes."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from molink.engine.kernels.cpu import (
    coded_linear,
    native_attention,
    native_decode,
    native_spans,
    norms,
    packed_linear,
)
from molink.engine.kernels.cpu.native_attention import AttentionKernels
from molink.engine.kernels.cpu.native_decode import DecodeKernel
from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.engine.kernels.cpu.native_spans import SpanKernel
from molink.engine.kernels.cpu.norms import RootMeanSquareNorm
from molink.engine.kernels.cpu.packed_linear import PackedLinear, SharedInput
from molink.engine.model import cpu_rewriting as rewriting
from molink.engine.model import finding_plain_layers
from molink.engine.model.plain_layer import PlainLayer
from molink.errors import UnsupportedModelError
from tests.engine.cpu_stages import cpu_stage
from tests.engine.logprobs import error, library_logprobs, random_tokens, stage_logprobs
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.test_wrong_kernels import (
    CHANGES,
    BiasLost,
    EpsilonOutside,
    HalfSums,
    HalfSumsProduct,
    of_wider_groups,
    without_zeros,
)
from tests.engine.tiny_models import save_tiny
from tests.sweeps import swept

LAYERS = 5
BFLOAT16 = torch.bfloat16

native = pytest.mark.skipif(native_library() is None, reason="no AVX512-BF16 or no C compiler")
vectors = pytest.mark.skipif(
    native_library(AVX512) is None and native_library(AVX2) is None, reason="no C compiler"
)


@pytest.fixture(autouse=True)
def proofs_of_its_own(monkeypatch):
    """What one test's kernels were found to be is not held against those of the next."""
    native_attention._kernels()
    for dtype in native_decode.NAMES:
        native_decode._kernel(dtype)
        native_spans._kernel(dtype)
    for module, name in ((packed_linear, "_proven"), (norms, "_readings")):
        monkeypatch.setattr(module, name, {})
    monkeypatch.setattr(native_attention, "_refused", [])


def check(directory, told, dtype, reference=None):
    """The stage says `told` and by how much, and computes what the library does."""
    stage = cpu_stage(directory, range(LAYERS), dtype=dtype)
    assert stage.fallbacks.swaps is not None, "the trial at load sees nothing"
    assert f"{told} is computed the library's way: is off by " in stage.fallbacks.swaps
    assert len(stage.fallbacks.swaps) <= 200
    tokens = random_tokens()
    exact, rounded = (
        reference or AutoModelForCausalLM.from_pretrained(directory, dtype=one)
        for one in (torch.float32, BFLOAT16)
    )
    wanted, library = library_logprobs(exact, tokens), library_logprobs(rounded, tokens)
    got = stage_logprobs(stage, tokens)
    if dtype == "float32":
        torch.testing.assert_close(got, wanted, atol=2e-4, rtol=1e-4)
    else:
        assert error(got, wanted) <= 1.2 * error(library, wanted)
    return stage


def saved(name, directory, dtype="bfloat16", **sizes):
    save_tiny(name, directory, dtype, num_hidden_layers=LAYERS, **sizes)


# -- norms and products ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "norm", "wrong"),
    [
        (
            "gemma3_text",
            "self_attn.q_norm",
            lambda weight: RootMeanSquareNorm(weight.float(), 1e-6, weight.dtype),
        ),
        ("llama", "input_layernorm", EpsilonOutside),
        ("llama", "input_layernorm", HalfSums),
    ],
    ids=["w for 1 + w", "eps outside the root", "sums in half precision"],
)
def test_a_norm(model, norm, wrong, tmp_path, monkeypatch):
    made = lambda module, *_: wrong(module.weight.detach())  # noqa: E731
    monkeypatch.setattr(rewriting, "replacement_for", made)
    saved(model, tmp_path, hidden_size=256)
    stage = check(tmp_path, f"the norm of model.layers.0.{norm}", "bfloat16")
    assert "RMSNorm" in type(stage.model.model.layers[1].input_layernorm).__name__


def passed_without_proof(monkeypatch):
    monkeypatch.setattr(packed_linear, "product_trouble", lambda *given: None)


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [("float32", BiasLost), ("bfloat16", BiasLost), ("bfloat16", HalfSumsProduct)],
)
def test_a_product(dtype, wrong, tmp_path, monkeypatch):
    passed_without_proof(monkeypatch)
    monkeypatch.setattr(packed_linear, "LAYOUTS", (wrong,))
    saved("qwen2", tmp_path, dtype, hidden_size=256)
    stage = check(tmp_path, "the product of model.layers.0.self_attn.q_proj", dtype)
    assert type(stage.model.model.layers[1].self_attn.q_proj) is nn.Linear


@pytest.mark.parametrize("dtype", swept(["float32", "bfloat16"], "bfloat16"))
def test_gate_and_up_exchanged_among_siblings(dtype, tmp_path, monkeypatch):
    part = SharedInput.part

    def exchanged(self, index, x):
        return part(self, 1 - index if len(self._sizes) == 2 else index, x)

    monkeypatch.setattr(SharedInput, "part", exchanged)
    saved("llama", tmp_path, dtype)
    check(tmp_path, "the product of model.layers.0.mlp.gate_proj", dtype)


@vectors
@pytest.mark.parametrize("model", swept(["llama", "qwen3_moe"], "llama"))
@pytest.mark.parametrize("wrong", [without_zeros, of_wider_groups])
def test_a_reading_of_few_bits(wrong, model, tmp_path, monkeypatch):
    scales = coded_linear._scales
    passed_without_proof(monkeypatch)
    misread = lambda weight, dtype: scales(wrong(weight), dtype)  # noqa: E731
    monkeypatch.setattr(coded_linear, "_scales", misread)
    form = FORMATS["pack-quantized asymmetric"]
    reference = save_quantized(model, tmp_path, form, num_hidden_layers=LAYERS, hidden_size=256)
    check(tmp_path, "the product of model.layers.0.self_attn.q_proj", "float32", reference)


class RowsExchanged(PackedLinear):
    """Of an expert's gate and values."""

    def __init__(self, weight, bias) -> None:
        super().__init__(weight, weight.dtype)
        self._matrix = weight.roll(len(weight) // 2, 0)

    def forward(self, x):
        return nn.functional.linear(x, self._matrix)


@pytest.mark.parametrize("dtype", swept(["float32", "bfloat16"], "bfloat16"))
@pytest.mark.parametrize("wrong", [RowsExchanged, HalfSumsProduct])
def test_experts(wrong, dtype, tmp_path, monkeypatch):
    passed_without_proof(monkeypatch)
    right = packed_linear.LAYOUTS[-1]
    of_experts = lambda weight, bias: (wrong if weight.shape == (64, 256) else right)(weight, bias)  # noqa: E731
    monkeypatch.setattr(packed_linear, "LAYOUTS", (of_experts,))
    saved("mixtral", tmp_path, dtype, intermediate_size=32, hidden_size=256, head_dim=16)
    if (wrong, dtype) != (HalfSumsProduct, "float32"):
        check(tmp_path, "the product of model.layers.0.mlp.experts.gate_up_proj", dtype)


@vectors
def test_experts_of_few_bits(tmp_path, monkeypatch):
    scales = coded_linear._scales
    passed_without_proof(monkeypatch)
    misread = lambda weight, dtype: scales(weight, dtype).roll(1, 1)  # noqa: E731
    monkeypatch.setattr(coded_linear, "_scales", misread)
    reference = save_gpt_oss(tmp_path, num_hidden_layers=LAYERS)
    check(tmp_path, "the product of model.layers.0.mlp.experts.gate_up_proj", "float32", reference)


# -- attention -------------------------------------------------------------------------------------

MODELS = {
    "a missing softcap": "gemma2",
    "a scale by another head size": "llama",
    "sinks ignored": "gpt_oss",
    "a window one short": "mistral",
}


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param(AttentionKernels, "bfloat16", marks=native),
        pytest.param(DecodeKernel, "float32", marks=vectors),
        pytest.param(SpanKernel, "float32", marks=vectors),
    ],
)
@pytest.mark.parametrize("change", swept(CHANGES, "sinks ignored", "a window one short"))
def test_attention(change, kernel, dtype, tmp_path, monkeypatch):
    attend = kernel.attend

    def wrong(self, query_THA, layer, batch, window, variant, *out):
        return attend(self, query_THA, layer, batch, *CHANGES[change](window, variant), *out)

    monkeypatch.setattr(kernel, "attend", wrong)
    saved(MODELS[change], tmp_path, dtype, head_dim=32)
    check(tmp_path, "attention of model.layers.0.self_attn", dtype)


# -- whole layers ----------------------------------------------------------------------------------


def shifted(layer, x, embeddings, *others):
    return layer, x, tuple(table.roll(1, 1) for table in embeddings), *others


def exchanged(layer, *others):
    packed = layer.parts.gate_up._packed
    layer._held.append(packed.roll(len(packed) // 2))
    layer._layer.gate_up.weights = layer._held[-1].data_ptr()
    return layer, *others


@native
@pytest.mark.parametrize("wrong", [shifted, exchanged])
@pytest.mark.parametrize("is_proven", [True, False])
def test_a_whole_layer(is_proven, wrong, tmp_path, monkeypatch):
    compute = PlainLayer.compute
    monkeypatch.setattr(PlainLayer, "compute", lambda *given: compute(*wrong(*given)))
    saved("llama", tmp_path, head_dim=32)
    if is_proven:
        stage = cpu_stage(tmp_path, range(LAYERS), dtype="bfloat16")
        assert stage.fallbacks.swaps is None, "the proof leaves nothing to the trial at load"
    else:
        first = lambda layers, *others: next(iter(layers))  # noqa: E731
        monkeypatch.setattr(finding_plain_layers, "_reading_of", first)
        stage = check(tmp_path, "all of model.layers.0", "bfloat16")
    assert not any("forward" in vars(layer) for layer in stage.model.model.layers)


def test_a_right_stage_has_nothing_to_tell(tmp_path):
    saved("gemma3_text", tmp_path)
    assert cpu_stage(tmp_path, range(LAYERS), dtype="bfloat16").fallbacks.swaps is None


def test_readings_that_the_inputs_do_not_tell_apart_end_the_load(tmp_path, monkeypatch):
    """Beside weights like these one more is nothing."""
    huge = lambda width, dtype: torch.full((width,), 1e5, dtype=dtype)  # noqa: E731
    monkeypatch.setattr(norms, "probe_weights", huge)
    saved("llama", tmp_path)
    names = "a norm by its weights and a norm by one more than its weights"
    with pytest.raises(UnsupportedModelError, match=names):
        cpu_stage(tmp_path, range(LAYERS), dtype="bfloat16")
