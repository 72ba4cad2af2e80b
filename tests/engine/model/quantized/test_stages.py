"""Stages of quantized checkpoints give the tokens of the library's model of the same weights."""

import pytest
import torch

from molink.engine.kernels.cpu.coded_linear import CodedLinear
from molink.engine.kernels.cpu.packed_linear import SharedPart
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS, SOME_FORMATS
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.test_exactness import jobs_of
from tests.engine.tiny_models import LAYERS, generate
from tests.sweeps import swept

CUTS = (0, 2, 3, LAYERS)


def check(directory, reference, seed=1, device="cpu"):
    jobs = jobs_of(seed)[:4]
    outputs = RingDriver(load_stages(directory, CUTS, device=device)).run(jobs)
    assert outputs == [generate(reference, job.prompt, job.tokens) for job in jobs]
    assert len({token for output in outputs for token in output}) > 4


@pytest.mark.parametrize("name", swept(FORMATS, *SOME_FORMATS))
def test_every_format_over_three_uneven_stages(name, tmp_path):
    check(tmp_path, save_quantized("llama", tmp_path, FORMATS[name]))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param("qwen3", "awq", marks=pytest.mark.sweeps),
        ("mixtral", "fp8 block"),
        pytest.param("qwen3_moe", "gptq", marks=pytest.mark.sweeps),
        ("qwen3_moe", "pack-quantized asymmetric"),
    ],
)
def test_other_architectures_and_experts(model, name, tmp_path):
    """Each format with all of them: `make formats`."""
    check(tmp_path, save_quantized(model, tmp_path, FORMATS[name]))


@pytest.mark.parametrize("name", swept(["pack-quantized asymmetric", "fp8 block"], of=1))
def test_latent_attention_reads_off_what_quantized_weights_mean(name, tmp_path):
    ranks = {"kv_lora_rank": 32, "q_lora_rank": 32}
    reference = save_quantized("deepseek_v3", tmp_path, FORMATS[name], **ranks)
    check(tmp_path, reference)
    stage = cpu_stage(tmp_path, range(2))
    assert stage.kv_token_bytes == 2 * 4 * (32 + 8)
    kept = [layer.self_attn.kv_b_proj for layer in stage.model.model.layers[:2]]
    assert not any(
        isinstance(module, QuantizedLinear) or list(module.parameters()) for module in kept
    )


def test_layers_that_share_their_input_are_one_product(tmp_path):
    save_quantized("llama", tmp_path, FORMATS["gptq"])
    stage = cpu_stage(tmp_path, range(2))
    parts = [m for m in stage.model.modules() if isinstance(m, SharedPart)]
    assert len(parts) == 2 * 5
    assert all(isinstance(part.shared.packed, CodedLinear | QuantizedLinear) for part in parts)
    assert {part.weight.dtype for part in parts} == {torch.float32}


def test_bf16_is_as_near_as_bf16_weights_are(tmp_path):
    """The packed product rounds no more than the product with bf16 weights does."""
    reference = save_quantized("llama", tmp_path / "packed", FORMATS["pack-quantized"])
    reference.save_pretrained(tmp_path / "plain")
    prompts = [jobs_of(3)[1].prompt]
    (packed,), (plain,) = (
        differences(tmp_path / kind, reference, prompts) for kind in ("packed", "plain")
    )
    assert packed <= 2 * plain
    assert plain > 0


def differences(directory, reference, prompts):
    """For each prompt the largest difference from the reference, which computes in fp32, among the
    log-probabilities of bf16 stages' likeliest words."""
    sampling = SamplingParams(max_tokens=4, temperature=0.0, logprobs=20)
    jobs = [Job(number, prompt, 1, sampling) for number, prompt in enumerate(prompts)]
    RingDriver(load_stages(directory, (0, LAYERS), "bfloat16")).run(jobs)
    with torch.inference_mode():
        logits = [reference(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]
    return [
        max(abs(logprob - float(wanted[word])) for word, logprob in job.drawn[0].top)
        for job, wanted in zip(jobs, (torch.log_softmax(row, -1) for row in logits), strict=True)
    ]


def test_the_experts_of_gpt_oss(tmp_path):
    check(tmp_path, save_gpt_oss(tmp_path))
