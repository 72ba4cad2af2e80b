"""Tokens that an engine draws on the tail, and those that it draws later."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class GrammarState(IntEnum):
    """State of a sequence's grammar after a token."""

    OPEN = 0
    """The sequence may go on; also the state of one without a grammar."""
    ENDED = 1
    """The answer is whole, and nothing can follow."""
    FAILED = 2
    """The grammar cannot be followed any further."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """Token that the tail drew, with log-probabilities where they were asked for."""

    request_id: int
    token_id: int
    logprob: float | None = None
    """Log-probability; None unless the request asked for log-probabilities."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with their log-probabilities, best first."""
    grammar: GrammarState = GrammarState.OPEN
    is_lost: bool = False
    """Whether it is none: its logits are not finite."""


class LateToken(Protocol):
    """Token that waits for the mask of its grammar."""

    @property
    def request_id(self) -> int:
        """Request whose next token it is."""

    def drawn(self, now: float) -> DrawnToken | None:
        """The token; None: the mask is not there yet."""
