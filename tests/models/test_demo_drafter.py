"""The shipped drafter of the demo model: that it is whole, and that it guesses well."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR

TEXTS = (
    "<|bos|><|user|>What is MoLink?<|end|><|assistant|>MoLink serves large language models on PCs "
    "that people lend over home internet. No single PC has to hold the whole model. Each PC hosts "
    "a run of layers called a stage, and the stages form a ring. Micro-batches circle the ring, so "
    "that nobody waits for the wire.<|end|>",
    "<|bos|><|user|>Why is the sky blue?<|end|><|assistant|>Sunlight is made of all colours. When "
    "it goes through the air, blue light is scattered much more than red light. So the whole sky "
    "looks blue to us.<|end|>",
    "<|bos|><|user|>What is the capital of France?<|end|><|assistant|>The capital of France is "
    "Paris.<|end|>",
)
"""Greedy answers of the demo model, from its card."""

ACCEPTANCE_MIN = 0.9
"""Measured on these texts: 0.98."""

WEIGHTS_BYTES_MAX = 2_000_000


def test_it_has_the_demo_models_words_and_two_small_layers():
    assert not list(DEMO_DRAFTER_DIR.glob("tokenizer*")), "its words are the demo model's"
    own, demo = (
        json.loads((folder / "config.json").read_text())
        for folder in (DEMO_DRAFTER_DIR, DEMO_MODEL_DIR)
    )
    assert own["vocab_size"] == demo["vocab_size"] and own["eos_token_id"] == demo["eos_token_id"]
    assert own["max_position_embeddings"] == demo["max_position_embeddings"]
    assert (own["num_hidden_layers"], own["hidden_size"], own["dtype"]) == (2, 128, "bfloat16")
    assert (DEMO_DRAFTER_DIR / "model.safetensors").stat().st_size < WEIGHTS_BYTES_MAX


@pytest.fixture(scope="module")
def likeliest():
    """The likeliest next token at each place of a text, by each of the models."""
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (DEMO_DRAFTER_DIR, DEMO_MODEL_DIR)
    ]

    def of(ids: list[int]) -> list[list[int]]:
        with torch.inference_mode():
            rows = [model(input_ids=torch.tensor([ids])).logits[0] for model in models]
        return [one.argmax(-1).tolist() for one in rows]

    return of


def test_it_guesses_most_tokens_of_an_answer(likeliest):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    answer_mark = tokenizer.convert_tokens_to_ids("<|assistant|>")
    agree = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        begin = ids.index(answer_mark)
        drafts, tokens = likeliest(ids)
        agree += [one == two for one, two in zip(drafts[begin:-1], tokens[begin:-1], strict=True)]
    assert len(agree) > 80
    assert sum(agree) / len(agree) > ACCEPTANCE_MIN, sum(agree) / len(agree)
