"""The experiment on drafts, and the models that it is made for."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tools.cycle_model import make_cyclic, successors
from tools.experiments.ring import speculation

WORDS, CYCLE = 104, 20


def cyclic(layers: int, wrong: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(layers)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=128,
            num_hidden_layers=layers,
            intermediate_size=64,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    ).eval()
    make_cyclic(model, successors(WORDS, CYCLE, wrong))
    return model


def test_greedy_text_walks_round_a_cycle():
    said = cyclic(2).generate(torch.tensor([[9]]), max_new_tokens=2 * CYCLE, do_sample=False)
    words = said[0].tolist()
    assert len(set(words)) == CYCLE and words[CYCLE:] == words[: CYCLE + 1]


def test_a_drafter_is_wrong_for_as_many_words_as_was_asked():
    right = successors(8192, 500, 0.0)
    wrong = successors(8192, 500, 0.13)
    share = (right != wrong)[4:].double().mean().item()
    assert share == pytest.approx(0.13, abs=0.015)
    with torch.inference_mode():
        likeliest = [
            model(input_ids=torch.arange(4, WORDS)[:, None]).logits[:, 0].argmax(-1)
            for model in (cyclic(3), cyclic(1, 0.13))
        ]
    asked = successors(WORDS, CYCLE, 0.0), successors(WORDS, CYCLE, 0.13)
    for words, after in zip(likeliest, asked, strict=True):
        assert words.tolist() == after[4:].tolist()


def test_drafters_stand_beside_none():
    figures = {"tokens_per_s_1": 9.0, "tokens_per_round_1": 1.0}
    middle = {"none": figures, "copy": {"tokens_per_s_1": 18.0, "tokens_per_round_1": 2.5}}
    first, rule, speed, rounds = speculation._table(middle).splitlines()
    assert first == "| medians | none | copy |" and rule
    assert speed == "| tokens_per_s_1 | 9 | 18 (2.00 x) |"
    assert rounds == "| tokens_per_round_1 | 1 | 2.5 (2.50 x) |"
