"""Answers end where any of those who know it says so: configs, tokenizer, template, names."""

from dataclasses import dataclass, field, replace

import pytest

from molink.checkpoint.description import describe
from molink.checkpoint.end_tokens import end_token_ids
from molink.models import DEMO_MODEL_DIR


@dataclass
class Tokenizer:
    """What is asked of Hugging Face's."""

    added_tokens_decoder: dict[int, str]
    eos_token_id: int | None = None
    chat_template: str | None = None
    rendered: str = field(default="")

    def apply_chat_template(self, turns, **options):
        return self.rendered or f"<|user|>{turns[0]['content']}<|x|>{turns[1]['content']}<|x|>\n"


@pytest.fixture(scope="module")
def model():
    return replace(describe(str(DEMO_MODEL_DIR)), eos_token_ids=(2,))


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        ({128: "<|eot_id|>", 129: "<|eom_id|>"}, (2, 129)),
        ({200: "<|return|>", 207: "<|end|>", 212: "<|call|>"}, (2, 212)),
        ({6: "<|flush|>", 7: "<|end|>", 8: "<|calls|>"}, (2, 8)),
        ({7: "<|end|>", 9: "<|other|>"}, (2,)),
        ({99_999: "<|eom_id|>"}, (2,)),
    ],
    ids=[
        "a call of llama",
        "harmony",
        "solar",
        "a turn, which the template says",
        "no row of the model",
    ],
)
def test_tokens_that_end_a_call_by_their_names(tokens, ends, model):
    assert end_token_ids(model, Tokenizer(tokens)) == ends


def test_the_tokenizer_s_own_and_what_the_template_puts_behind_an_answer(model):
    tokenizer = Tokenizer({5: "<|x|>"}, eos_token_id=4, chat_template="t")
    assert end_token_ids(model, tokenizer) == (2, 4, 5)
    tokenizer.chat_template = "<|channel|>"
    assert end_token_ids(model, tokenizer) == (2, 4)
    assert end_token_ids(model, None) == (2,)


def test_the_end_of_a_thought_is_none_whoever_names_it(model):
    tokenizer = Tokenizer({2: "<|end|>", 3: "<|return|>", 4: "<|call|>"})
    assert end_token_ids(model, tokenizer) == (4,)
