"""The text of single tokens, as log-probabilities name them.

OpenAI's shapes name tokens by text. Twenty alternatives for each position would mean twenty calls
of the tokenizer for each token, so texts are remembered; the vocabulary bounds how many there can
be. A model without a tokenizer gets `token_id:17`.
"""

from molink.serving.service import GenerationService

__all__ = ["LOGPROB_MIN", "TokenTexts", "finite"]

LOGPROB_MIN = -9999.0
"""OpenAI's value for "very unlikely"; minus infinity is not JSON."""


def finite(logprob: float) -> float:
    """`logprob`, or LOGPROB_MIN for minus infinity and NaN."""
    return logprob if logprob >= LOGPROB_MIN else LOGPROB_MIN


class TokenTexts:
    """Texts of the served model's tokens."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """The text of one token."""
        known = self._texts.get(token_id)
        if known is None:
            known = self._texts[token_id] = self._decode(token_id)
        return known

    def shown(self, token_id: int) -> str:
        """What the token adds to an answer's text; nothing for special tokens."""
        tokenizer = self._service.card.tokenizer
        return "" if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=True)

    def _decode(self, token_id: int) -> str:
        tokenizer = self._service.card.tokenizer
        return f"token_id:{token_id}" if tokenizer is None else tokenizer.decode([token_id])
