"""`suffix`: a gap is filled by a model that has marks for it, and refused for others."""

from dataclasses import dataclass, replace

import pytest

from tests.api.conftest import CARD, CharTokenizer, FakeService

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@dataclass
class FillingTokenizer(CharTokenizer):
    """Its marks are tokens of their own."""

    def encode(self, text, *, add_special_tokens=True):
        for place, mark in enumerate(MARKS):
            text = text.replace(mark, chr(200 + place))
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_a_gap_is_filled(serve, http):
    service = FakeService(card=replace(CARD, tokenizer=FillingTokenizer()))
    body = {"prompt": ["def f():", "x"], "suffix": "return 1", "max_tokens": 3}
    async with http.post(f"{await serve(service)}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        assert [one["text"] for one in (await response.json())["choices"]] == ["abc", "abc"]
    first, second = ("".join(map(chr, one.prompt_token_ids)) for one in service.requests)
    assert first == "\x01\xc8def f():\xc9return 1\xca" and second == "\x01\xc8x\xc9return 1\xca"


@pytest.mark.parametrize("tokenizer", [CharTokenizer(), FillingTokenizer()])
async def test_a_gap_that_cannot_be_filled(serve, http, tokenizer):
    service = FakeService(card=replace(CARD, tokenizer=tokenizer))
    prompt = [5, 6] if isinstance(tokenizer, FillingTokenizer) else "def f():"
    body = {"prompt": prompt, "suffix": "return 1"}
    async with http.post(f"{await serve(service)}/v1/completions", json=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "suffix") and not service.requests
