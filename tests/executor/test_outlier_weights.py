"""Models with norm weights as published ones have them answer in bf16 as the library does."""

import torch
from transformers import AutoModelForCausalLM

from molink.executor.proof import probe_weights
from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.executor.cpu_stages import cpu_stage
from tests.executor.tiny_models import COMMON, tiny_config, tiny_model

LAYERS, TOKENS = 3, 48


def save_with_outliers(directory):
    """A Gemma 3 whose norms multiply by up to 300, and some by less than nothing."""
    model = tiny_model(tiny_config("gemma3_text", num_hidden_layers=LAYERS, head_dim=32))
    for name, module in model.named_modules():
        if name.endswith("norm"):
            weight = probe_weights(len(module.weight), torch.float32)
            # What is normed to be weighed by a softmax keeps to its range.
            is_weighed = name.endswith(("q_norm", "k_norm")) or name == "model.norm"
            module.weight.data = weight / 100 if is_weighed else weight
    model.bfloat16().save_pretrained(directory)


def library_logprobs(directory, dtype, tokens):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    with torch.inference_mode():
        return torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0].float(), -1)


def stage_logprobs(directory, dtype, tokens):
    stage = cpu_stage(directory, range(LAYERS), dtype=dtype)
    assert stage.fallbacks.swaps is None
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    span, admission = Span(1, 0, len(tokens), True), Admission(1, len(tokens), 1, sampling)
    batch = Batch(0, PREFILL, -1, (span,), (admission,))
    stage.admit(admission)
    stage._grow(batch)
    with torch.inference_mode():
        logits, _ = stage.launched_rows(batch, tokens, None, range(len(tokens)))
    return torch.log_softmax(logits.float(), -1)


def error(of, wanted) -> float:
    return float((wanted - of).square().mean().sqrt())


def test_a_gemma_3_with_outliers_is_as_near_to_fp32_as_the_library_is(tmp_path):
    save_with_outliers(tmp_path)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, COMMON["vocab_size"], (TOKENS,), generator=generator).tolist()
    wanted = library_logprobs(tmp_path, torch.float32, tokens)
    library = error(library_logprobs(tmp_path, torch.bfloat16, tokens), wanted)
    assert error(stage_logprobs(tmp_path, "bfloat16", tokens), wanted) <= 1.2 * library
    assert error(stage_logprobs(tmp_path, "float32", tokens), wanted) <= 1e-2 * library
