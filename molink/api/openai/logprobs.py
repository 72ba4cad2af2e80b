"""Log-probabilities as answers show them, of their own tokens and of the prompt's.

They name tokens by text. Twenty alternatives for each position would mean twenty calls of the
tokenizer for each token, so texts are remembered; the vocabulary bounds how many there can be.

A ring scores a prompt while it computes it, at no cost but that of the words' logits.
"""

from collections.abc import Callable, Sequence

from molink.api.answers import finite
from molink.api.errors import ApiError
from molink.api.openapi.answers import (
    PromptAlternative,
    PromptLogprobs,
    TokenAlternative,
    TokenPosition,
)
from molink.serving.service import GenerationService
from molink.serving.text_stream import TextStream
from molink.serving.token_events import PromptLogprob, TokenLogprob
from molink_scheduler.request import SamplingParams

SCORES_MAX = 2**17
"""Log-probabilities of prompts in one answer, those of alternatives included: 5 MB of JSON."""

BROKEN_CHARACTER = "\ufffd"
"""Text that a tokenizer shows for a token that holds only part of a character's bytes."""


_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(one): one for one in _PRINTED} | {
    chr(256 + place): byte
    for place, byte in enumerate(one for one in range(256) if one not in _PRINTED)
}
"""Byte that a character stands for in byte-level vocabularies: GPT-2's table."""


def _fragment(entry: str) -> bytes | None:
    """The bytes of a vocabulary's entry that holds part of a character; None: nobody knows."""
    if len(entry) == len("<0xE2>") and entry.startswith("<0x"):
        return bytes.fromhex(entry[3:5])
    return bytes(_BYTES[one] for one in entry) if all(one in _BYTES for one in entry) else None


class TokenTexts:
    """Texts of the served model's tokens; `token_id:17` where there is no tokenizer, and the bytes,
    as `bytes:\\xe2\\x98`, where they are only part of a character's: each has a name of its own."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service
        self._texts: dict[int, str] = {}
        self.fragments: dict[int, bytes] = {}
        """Bytes of the tokens whose text was asked for and which are only part of a character."""

    def text(self, token_id: int) -> str:
        """The text of one token."""
        known = self._texts.get(token_id)
        if known is None:
            known = self._texts[token_id] = self._decode(token_id)
        return known

    def chars_behind(self, before: tuple[int, ...]) -> Callable[[int], int]:
        """Counter of the characters that each token adds to a text behind others, which it is told
        in turn: a special token adds none, and of those that share a character the last adds it."""
        if (tokenizer := self._service.card.tokenizer) is None:
            return lambda token_id: 0
        stream = TextStream.of(tokenizer, SamplingParams(max_tokens=1, context=before))
        return lambda token_id: len(stream.push((token_id,)))

    def _decode(self, token_id: int) -> str:
        tokenizer = self._service.card.tokenizer
        if tokenizer is None:
            return f"token_id:{token_id}"
        text = tokenizer.decode([token_id])
        if BROKEN_CHARACTER not in text:
            return text
        held = _fragment(tokenizer.convert_ids_to_tokens([token_id])[0])
        if held is None:
            return text
        self.fragments[token_id] = held
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)


def positions(logprobs: Sequence[TokenLogprob], texts: TokenTexts) -> list[TokenPosition]:
    """OpenAI's object for each token of an answer, with the likeliest at its place."""
    return [
        {
            **_token(one.token_id, one.logprob, texts),
            "top_logprobs": [_token(token_id, logprob, texts) for token_id, logprob in one.top],
        }
        for one in logprobs
    ]


def _token(token_id: int, logprob: float, texts: TokenTexts) -> TokenAlternative:
    text = texts.text(token_id)
    whole = BROKEN_CHARACTER not in text
    return {
        "token": text,
        "logprob": finite(logprob),
        "bytes": list(texts.fragments.get(token_id, text.encode())) if whole else None,
    }


# -- of prompts -----------------------------------------------------------------------------------


def check_scores(
    count: int | None, prompt_tokens: int, *, shown: int = 1, stream: bool | None = False
) -> None:
    """Raise ApiError where the scores of a prompt of so many tokens, with `count` alternatives and
    given `shown` times, are too many for one answer, or would be streamed. None: none are asked
    for."""
    if count is None:
        return
    if stream:
        raise ApiError(
            "'prompt_logprobs' cannot be streamed: leave one of them out.", param="prompt_logprobs"
        )
    if prompt_tokens * (count + 1) * shown > SCORES_MAX:
        raise ApiError(
            f"The answer would hold more than {SCORES_MAX} log-probabilities of the prompt: ask "
            "for fewer alternatives or choices, or send a shorter prompt.",
            param="prompt_logprobs",
        )


def prompt_entries(
    scores: Sequence[PromptLogprob], count: int, texts: TokenTexts
) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: for each token of the prompt, by token id, its own and the `count`
    likeliest; None for the first, which nothing comes before."""
    return [None, *(_entry(score, count, texts) for score in scores)]


def _entry(score: PromptLogprob, count: int, texts: TokenTexts) -> dict[str, PromptAlternative]:
    found = {
        token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(score.top[:count], 1)
    }
    found[score.token_id] = (score.logprob, score.rank)
    return {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": rank,
            "decoded_token": texts.text(token_id),
        }
        for token_id, (logprob, rank) in found.items()
    }
