"""Three stages on a card give, token for token, what the library gives on a CPU; in bf16 nearly."""

from itertools import pairwise

import pytest

from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.model.quantized.test_stages import check
from tests.engine.recurrent.hybrids import HYBRIDS, WITH_EXPERTS
from tests.engine.recurrent.mixed_answers import PROMPT_TOKENS, mixed_answers
from tests.engine.ring_driver import RingDriver
from tests.engine.test_exactness import jobs_of
from tests.engine.tiny_models import ARCHITECTURES, LAYERS, generate, save_tiny
from tests.gpu.device import HAS_CARD

NAMES = tuple(ARCHITECTURES) if HAS_CARD else ("gpt_oss",)
DENSE = ("llama", "gemma2", "qwen3", "phi3") if HAS_CARD else ("llama",)
"""Rounding turns some rows of random routers to other experts, whose scores say nothing then."""

SOME_HYBRIDS = HYBRIDS if HAS_CARD else ("Olmo-Hybrid 7B",)
SOME_FORMATS = tuple(FORMATS) if HAS_CARD else ("awq",)

CUTS = (0, 2, 3, LAYERS)

PROMPT = tuple(range(3, 60))
SCORED = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)

SCORE_TOLERANCE = 0.1
"""Of a log-probability in bf16: these models' logits have a deviation of about one."""


def stages_on(device, directory, dtype: str) -> list[StageExecutor]:
    options = {"device": str(device), "dtype": dtype, "kv_tokens": 1024}
    return [cpu_stage(directory, range(*cut), **options) for cut in pairwise(CUTS)]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_generate_in_fp32(name, device, tmp_path):
    model = save_tiny(name, tmp_path)
    jobs = jobs_of(seed=1) if HAS_CARD else jobs_of(seed=1)[:3]
    outputs = RingDriver(stages_on(device, tmp_path, "float32")).run(jobs)
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs]


@pytest.mark.parametrize("name", DENSE)
def test_scores_in_bf16_are_those_of_fp32(name, device, tmp_path):
    save_tiny(name, tmp_path)
    by_card = scores(stages_on(device, tmp_path, "bfloat16"))
    by_cpu = scores(stages_on("cpu", tmp_path, "float32"))
    worst = max(abs(one - other) for one, other in zip(by_card, by_cpu, strict=True))
    assert len(by_card) == len(PROMPT) - 1 and worst <= SCORE_TOLERANCE


@pytest.mark.parametrize("name", SOME_HYBRIDS)
def test_hybrids_in_mixed_batches_equal_generate(name, device, tmp_path):
    compared = mixed_answers(name, tmp_path, str(device))
    assert compared.equal == len(PROMPT_TOKENS) or name in WITH_EXPERTS
    assert compared.equal + compared.near_ties == len(PROMPT_TOKENS)


@pytest.mark.parametrize("name", SOME_FORMATS)
def test_quantized_weights_equal_the_model_that_they_mean(name, device, tmp_path):
    check(tmp_path, save_quantized("llama", tmp_path, FORMATS[name]), device=str(device))


def test_quantized_experts_equal_the_model_that_they_mean(device, tmp_path):
    check(tmp_path, save_gpt_oss(tmp_path), device=str(device))


def scores(stages: list[StageExecutor]) -> list[float]:
    """Log-probabilities of a prompt's tokens."""
    span = Span(0, 0, len(PROMPT), samples=True)
    batch = Batch(0, PREFILL, 0, (span,), (Admission(0, len(PROMPT), 99, SCORED, PROMPT),))
    hidden_TD = None
    for stage in stages:
        output = stage.step(batch, list(PROMPT), hidden_TD)
        hidden_TD = output.hidden_TD
    return [score.logprob for score in output.scores]
