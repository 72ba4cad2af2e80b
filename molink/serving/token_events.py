"""News of one sequence: the tokens that were drawn, and what is told of them.

Text is cut where a service makes these, not in the API: a `TokenEvent` carries text that is final
(complete characters, nothing that may still turn out to begin a stop string).
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one generated token and of the most likely ones at its position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """Most likely tokens as (token id, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class PromptLogprob(TokenLogprob):
    """Log-probability of one of the prompt's own tokens."""

    rank: int
    """Rank of the token at its place; 1: no token was likelier there."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of one sequence: tokens that were sampled, and the text that became final with them."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log-probabilities, one per token id when asked for, else empty."""
    finish_reason: str | None = None
    """Reason of the end, "stop" or "length", on the last event of a sequence, else None."""
    stop_reason: str | int | None = None
    """The stop string or stop token that came and was asked for, with "stop"; None: the model's own
    end. "deadline", with "length", where the request's own deadline has ended it (`deadline`)."""
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    """Log-probabilities of the prompt's tokens behind its first, with the first token, if asked."""
    texts: tuple[str, ...] = ()
    """Pieces of `text`, one for each of several tokens; empty: all of it came with one token."""
    drafts: int = 0
    """Drafts that the ring has verified for these tokens. Those right are all of them but the last,
    which the ring has drawn behind them."""

    def by_token(self) -> Iterator["TokenEvent"]:
        """The same news, an event for each token: readers of an answer tell by tokens where a part
        of it begins."""
        if len(self.texts) < 2:
            yield self
            return
        last = len(self.texts) - 1
        for place, text in enumerate(self.texts):
            yield TokenEvent(
                self.token_ids[place : place + 1],
                text,
                self.logprobs[place : place + 1],
                self.finish_reason if place == last else None,
                self.stop_reason if place == last else None,
                self.prompt_logprobs if place == 0 else (),
            )
