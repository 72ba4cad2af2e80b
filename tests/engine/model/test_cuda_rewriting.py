"""Stages that are rewritten as for a card compute what the library's whole model does, with torch
in the place of a card's kernels; what a kernel computes wrongly is left to the library."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.kernels.cuda.fused_math import Gate, PlainFused, Rotation
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.model.cuda_rewriting import FusedNorm, GatedMlp, JoinedLinear, TorchNorm
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.self_test import self_test
from molink.engine.self_test.self_test import trouble_with_card_rewriting
from molink.engine.step.stage import StageExecutor
from molink.errors import UnsupportedModelError
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams
from tests.engine.recurrent.hybrids import HYBRIDS, published_config
from tests.engine.tiny_models import ARCHITECTURES, KINDS, tiny_config, with_weights_that_matter
from tests.sweeps import swept

LAYERS = 4
CPU = torch.device("cpu")


def config_of(name):
    config = tiny_config(name, **{"n_layer" if name == "gpt2" else "num_hidden_layers": LAYERS})
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    return config


def description_of(config):
    sizes = (LAYERS, config.hidden_size, config.vocab_size, 256)
    return ModelDescription("m", Path(), config.model_type, *sizes, (2,), "float32")


def rewritten(name, choice, dtype=torch.float32):
    """A whole model as one stage."""
    config, part = config_of(name), StagePart(range(LAYERS), LAYERS)
    model = with_weights_that_matter(build_stage_class(config, part)(copy.deepcopy(config)))
    attention = AttentionChoice(CPU, None, fused=choice)
    given = (model.to(dtype), part, description_of(config), CPU, dtype)
    stage = StageExecutor(*given, attention=attention)
    stage.prepare(kv_tokens=256)
    return stage


def all_of(stage, kind):
    return [module for module in stage.model.modules() if isinstance(module, kind)]


def calls_of(stage):
    found = (module.__dict__.get("rotary_call") for module in stage.model.modules())
    return [call for call in found if call is not None]


def kept(stage, attribute):
    return sum(attribute in module.__dict__ for module in stage.model.modules())


def tokens_of(stage):
    """What is drawn after a prompt, and then of a decode step."""
    drawn = []
    for start, ids in ((0, (7, 3, 9, 4, 8, 5, 11)), (7, (6,))):
        span = Span(0, start, start + len(ids), samples=True)
        params = SamplingParams(max_tokens=9, temperature=0.0, logprobs=5)
        admissions = (Admission(0, 7, 9, params),) if start == 0 else ()
        batch = Batch(0, BatchClass.PREFILL, -1, (span,), admissions)
        drawn += [pair for token in stage.step(batch, ids).drawn for pair in token.top]
    return drawn


@pytest.mark.parametrize("name", swept(ARCHITECTURES, *KINDS))
def test_rewritten_stages_compute_what_the_model_does(name):
    config = config_of(name)
    assert trouble_with_card_rewriting(config, description_of(config)) is None


@pytest.mark.parametrize("name", [HYBRIDS[0], "Granite 4.0 H Tiny", "LFM2 1.2B"])
def test_so_do_those_that_keep_states(name):
    config = published_config(name)
    assert trouble_with_card_rewriting(config, description_of(config)) is None


@pytest.mark.parametrize(
    ("name", "rotation", "is_put_off"),
    [
        ("llama", Rotation(16, neighbours=False, step=1), True),
        ("gpt_oss", Rotation(16, neighbours=False, step=1), True),
        ("glm4", Rotation(8, neighbours=True, step=1), True),
        ("hunyuan_v1_moe", Rotation(16, neighbours=False, step=1), False),
    ],
)
def test_rotations_are_found(name, rotation, is_put_off):
    """Hunyuan has norms between rotation and attention, so there it is not put off."""
    calls = calls_of(rewritten(name, FusedChoice(PlainFused())))
    assert len(calls) == LAYERS
    assert {(call._rotation, call._is_put_off) for call in calls} == {(rotation, is_put_off)}


def test_other_queries_than_those_of_the_trial_are_refused():
    stage = rewritten("llama", FusedChoice(PlainFused()))
    call = calls_of(stage)[0]
    q, k = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    tables = torch.zeros(1, 3, 16), torch.zeros(1, 3, 16)
    query, key = call(q, k, *tables)
    assert call.taken(query, key).turn.rotation.size == 16
    query, key = call(q, k, *tables)
    with pytest.raises(UnsupportedModelError):
        call.taken(query * 1, key)
    assert call.taken(query, key) is None, "it was forgotten"


def test_everything_is_rewritten_once():
    stage = rewritten("gpt_oss", FusedChoice(PlainFused()))
    assert len(all_of(stage, FusedNorm)) == 2 * LAYERS + 1
    assert len(all_of(stage, JoinedLinear)) == LAYERS
    assert kept(stage, "fused_experts") == kept(stage, "rotary_call") == LAYERS
    stage = rewritten("gemma2", FusedChoice(PlainFused()))
    assert len(all_of(stage, FusedNorm)) == 4 * LAYERS + 1
    assert {mlp._gate for mlp in all_of(stage, GatedMlp)} == {Gate("gelu_tanh")}
    assert len(all_of(stage, JoinedLinear)) == 2 * LAYERS


def test_without_kernels_norms_and_linears_are_torchs():
    stage = rewritten("llama", FusedChoice(None))
    assert len(all_of(stage, TorchNorm)) == 2 * LAYERS + 1
    assert len(all_of(stage, JoinedLinear)) == 2 * LAYERS
    assert not all_of(stage, GatedMlp) and not calls_of(stage)


def test_the_weight_of_a_norm_keeps_its_numbers():
    """1 + weight has more places than a bfloat16, which the library's norm does not round off."""
    stage = rewritten("gemma2", FusedChoice(PlainFused()), torch.bfloat16)
    weights = [norm.wide_N for norm in all_of(stage, FusedNorm)]
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert not any(torch.equal(weight, weight.bfloat16().float()) for weight in weights)


USES = {
    "normed": "norms",
    "gated": "gates",
    "rotated": "rotations",
    "write": "storing keys and values",
    "expert_product": "the product with experts",
}
"""What each operator is called where it is told that a kernel of it is wrong."""


@dataclass
class Wrong:
    """Operators of which one is slightly off, or fails as a compiler would."""

    name: str
    error: Exception | None = None
    right: Any = field(default_factory=PlainFused)

    def __getattr__(self, name):
        operator = getattr(self.right, name)
        if name != self.name:
            return operator

        def wrong(*given):
            if self.error is not None:
                raise self.error
            out = operator(*given)
            return tuple(one * 1.05 for one in out) if isinstance(out, tuple) else out * 1.05

        return wrong


@pytest.mark.parametrize("error", [None, RuntimeError("no compiler\nat all")])
@pytest.mark.parametrize("operator", USES)
def test_what_a_kernel_gets_wrong_is_left_to_the_library(operator, error, caplog):
    name = "mixtral" if operator == "expert_product" else "llama"
    wanted = tokens_of(rewritten(name, FusedChoice(PlainFused())))
    stage = rewritten(name, FusedChoice(Wrong(operator, error)))
    got = tokens_of(stage)
    assert [token for token, _ in got] == [token for token, _ in wanted]
    assert [p for _, p in got] == pytest.approx([p for _, p in wanted], abs=1e-4)
    told = {record.message for record in caplog.records}
    assert len(told) == 1 and all("at all" not in line for line in told)
    why = "RuntimeError: no compiler" if error else "the kernel differs from torch on this card"
    assert stage.fallbacks.fusion == f"{USES[operator]}: {why}"


def test_uses_with_one_reason_share_a_sentence():
    stage = rewritten("llama", FusedChoice(Wrong("write", ValueError("no"), Wrong("normed"))))
    fused = stage.attention.fused
    for kind in range(2):
        assert not fused.trusts("gates", ("another", kind), lambda: False)
    differs = "the kernel differs from torch on this card"
    told = f"storing keys and values: ValueError: no; norms, gates: {differs}"
    assert stage.fallbacks.fusion == told
    assert rewritten("llama", FusedChoice(PlainFused())).fallbacks.fusion is None


def test_a_card_without_kernels_says_why():
    choice = AttentionChoice(CPU, None)
    choice.without_kernels("ImportError: no Triton")
    assert (choice.fallback, choice.fusion_fallback) == ("ImportError: no Triton",) * 2
    choice.leave_unfused("it does not run\n")
    assert choice.fusion_fallback == "the self-test: it does not run\ufffd"


def test_a_rewriting_that_changes_numbers_is_told(monkeypatch, caplog):
    plain = self_test._stage

    def skewed(*given):
        stage = plain(*given)
        for norm in all_of(stage, FusedNorm):
            norm.wide_N.mul_(1.1)
        return stage

    config = config_of("llama")
    monkeypatch.setattr(self_test, "_stage", skewed)
    told = trouble_with_card_rewriting(config, description_of(config))
    assert told.startswith("log-probabilities differ by ")
    assert "log-probabilities differ" in caplog.text
