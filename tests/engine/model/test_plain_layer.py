"""Plain layers run in one call of our kernel, and give what their own code gives."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

from molink.engine.kernels.cpu.native_kernel import native_library
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.model.quantized.checkpoints import save_quantized
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.tiny_models import COMMON, save_tiny

pytestmark = pytest.mark.skipif(native_library() is None, reason="no AVX512-BF16 or no C compiler")

LAYERS = range(1, 3)
HIDDEN = COMMON["hidden_size"]
TOLERANCE = 3e-2
"""Of what two layers add to their rows, relative to the largest number."""


def stage_of(name, directory, **options):
    save_tiny(name, directory, "bfloat16", head_dim=32, num_hidden_layers=4)
    return cpu_stage(directory, LAYERS, dtype="bfloat16", **options)


def plain_layers(stage):
    layers = stage.model.get_decoder().layers
    return [layer for layer in layers if "forward" in vars(layer)]


def rows(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, HIDDEN, generator=generator) * 0.1).to(torch.bfloat16)


def step(stage, x, *spans: Span) -> torch.Tensor:
    fresh = [span for span in spans if span.start == 0]
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    admissions = tuple(Admission(one.request_id, one.tokens, 60, sampling) for one in fresh)
    return stage.step(Batch(0, BatchClass.PREFILL, 0, spans, admissions), None, x).hidden_TD


def three_steps(stage) -> list[torch.Tensor]:
    """A prompt alone, then beside another one's beginning, then two decode rows."""
    return [
        step(stage, rows(19, 0), Span(1, 0, 19, False)),
        step(stage, rows(15, 1), Span(1, 19, 20, False), Span(2, 0, 14, False)),
        step(stage, rows(2, 2), Span(2, 14, 15, False), Span(1, 20, 21, False)),
    ]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "phi3"])
def test_a_plain_layer_is_one_call_and_gives_what_its_own_code_gives(name, kv_dtype, tmp_path):
    stage = stage_of(name, tmp_path, kv_tokens=128, kv_dtype=kv_dtype)
    replaced = plain_layers(stage)
    assert len(replaced) == len(LAYERS)
    got = three_steps(stage)
    for layer in replaced:
        del layer.forward
    for mine, wanted, seed in zip(got, three_steps(stage), range(3), strict=True):
        x = rows(len(mine), seed).float()
        added, wanted = mine.float() - x, wanted.float() - x
        assert (added - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


def test_layers_of_few_bits_are_one_call_too(tmp_path):
    save_quantized("llama", tmp_path, FORMATS["awq"], head_dim=32, num_hidden_layers=4)
    stage = cpu_stage(tmp_path, LAYERS, dtype="bfloat16")
    assert len(plain_layers(stage)) == len(LAYERS)


def test_a_few_decode_rows_get_the_same_bits_alone(tmp_path):
    stage, prompts = stage_of("llama", tmp_path, kv_tokens=128), rows(30, 0)
    step(stage, prompts, *(Span(one, 0, 10, False) for one in range(3)))
    spans, x = [Span(one, 10, 11, False) for one in range(3)], rows(3, 1)
    together = step(stage, x, *spans)
    alone = [step(stage, x[one : one + 1], spans[one]) for one in range(3)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("name", ["gemma2", "olmo2", "mixtral", "opt"])
def test_a_layer_of_another_order_keeps_its_own_code(name, tmp_path):
    sizes = {} if name == "opt" else {"head_dim": 32}
    save_tiny(name, tmp_path, "bfloat16", num_hidden_layers=4, **sizes)
    assert plain_layers(cpu_stage(tmp_path, LAYERS, dtype="bfloat16")) == []


def test_fp32_keeps_the_library_s_code(tmp_path):
    save_tiny("llama", tmp_path, head_dim=32, num_hidden_layers=4)
    assert plain_layers(cpu_stage(tmp_path, LAYERS)) == []


def test_an_mlp_with_a_factor_of_its_own_is_seen(tmp_path, monkeypatch):
    forward = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: 1.15 * forward(self, x))
    assert plain_layers(stage_of("llama", tmp_path)) == []


def test_a_layer_that_changes_with_the_distance_is_seen(tmp_path, monkeypatch):
    forward = LlamaDecoderLayer.forward

    def changing(self, hidden_states, **kwargs):
        out = forward(self, hidden_states, **kwargs)
        far = kwargs["position_ids"][0, :, None] > 150
        return torch.where(far, hidden_states, out)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", changing)
    assert plain_layers(stage_of("llama", tmp_path)) == []
