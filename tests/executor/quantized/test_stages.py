"""Stages of quantized checkpoints give the tokens of the library's model of the same weights."""

import pytest

from tests.executor.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.executor.quantized.formats import FORMATS
from tests.executor.ring_driver import RingDriver, load_stages
from tests.executor.test_exactness import jobs_of
from tests.executor.tiny_models import LAYERS, generate

CUTS = (0, 2, 3, LAYERS)
MODELS = {"llama": {}, "qwen3": {}, "mixtral": {}, "qwen3_moe": {}}


def check(directory, reference, seed=1):
    jobs = jobs_of(seed)[:4]
    outputs = RingDriver(load_stages(directory, CUTS, self_test=False)).run(jobs)
    assert outputs == [generate(reference, job.prompt, job.tokens) for job in jobs]
    assert len({token for output in outputs for token in output}) > 4


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_over_three_uneven_stages(name, tmp_path):
    check(tmp_path, save_quantized("llama", tmp_path, FORMATS[name]))


@pytest.mark.parametrize("model", ["qwen3", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("name", ["pack-quantized asymmetric", "awq", "gptq", "fp8 block"])
def test_other_architectures_and_experts(model, name, tmp_path):
    check(tmp_path, save_quantized(model, tmp_path, FORMATS[name]))


def test_the_experts_of_gpt_oss(tmp_path):
    check(tmp_path, save_gpt_oss(tmp_path))
