"""Models with norm weights as published ones have them answer in bf16 as the library does."""

import torch
from transformers import AutoModelForCausalLM

from molink.engine.proof import probe_weights
from tests.engine.cpu_stages import cpu_stage
from tests.engine.logprobs import error, library_logprobs, random_tokens, stage_logprobs
from tests.engine.tiny_models import tiny_config, tiny_model

LAYERS = 3


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


def logprobs_of(directory, dtype):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    return library_logprobs(model, random_tokens())


def stage_of(directory, dtype):
    stage = cpu_stage(directory, range(LAYERS), dtype=dtype)
    assert stage.fallbacks.swaps is None
    return stage_logprobs(stage, random_tokens())


def test_a_gemma_3_with_outliers_is_as_near_to_fp32_as_the_library_is(tmp_path):
    save_with_outliers(tmp_path)
    wanted = logprobs_of(tmp_path, torch.float32)
    library = error(logprobs_of(tmp_path, torch.bfloat16), wanted)
    assert error(stage_of(tmp_path, "bfloat16"), wanted) <= 1.2 * library
    assert error(stage_of(tmp_path, "float32"), wanted) <= 1e-2 * library
