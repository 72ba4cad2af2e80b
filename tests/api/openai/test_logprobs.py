"""Tokens that hold part of a character have names of their own, which graders compare."""

from dataclasses import dataclass, replace

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from tests.api.conftest import CARD, CharTokenizer, FakeService

A = ord("a")
ALPHABET = sorted(ByteLevel.alphabet())


def entry_of(text: bytes) -> str:
    """As a byte-level tokenizer writes it: its own pre-tokenizer tells."""
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text.decode())
    return "".join(piece for piece, _ in pieces)


EMOJI = "🙂🧩".encode()
ENTRY = entry_of(EMOJI)


@dataclass
class Fragments(CharTokenizer):
    """The first tokens of an answer are the bytes of an emoji."""

    style: str = "byte-level"

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join("\ufffd" if A <= one < A + len(EMOJI) else chr(one) for one in token_ids)

    def convert_ids_to_tokens(self, ids):
        if self.style == "byte-level":
            return [ENTRY[one - A] for one in ids]
        return [f"<0x{EMOJI[one - A]:02X}>" for one in ids]


@pytest.mark.parametrize("style", ["byte-level", "sentencepiece"])
async def test_fragments_of_a_character_are_told_apart(serve, http, style):
    service = FakeService(card=replace(CARD, tokenizer=Fragments(style=style)))
    url, asked = await serve(service), {"max_tokens": 3, "temperature": 0}
    body = asked | {"prompt": "hi", "logprobs": 3}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        lists = (await response.json())["choices"][0]["logprobs"]
    assert lists["tokens"] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x99"]
    assert [len(one) for one in lists["top_logprobs"]] == [3, 3, 3]
    assert all(one in top for one, top in zip(lists["tokens"], lists["top_logprobs"], strict=True))
    body = asked | {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        content = (await response.json())["choices"][0]["logprobs"]["content"]
    assert [one["bytes"] for one in content] == [[0xF0], [0x9F], [0x99]]


def test_every_byte_has_its_character():
    from molink.api.openai.logprobs import _BYTES

    assert sorted(_BYTES) == ALPHABET and sorted(_BYTES.values()) == list(range(256))
    assert [_BYTES[one] for one in ENTRY] == list(EMOJI)
