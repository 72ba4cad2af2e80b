"""Log of an answer that outlives its service, whoever keeps it."""

from dataclasses import dataclass
from typing import Protocol

from molink.serving.token_events import TokenEvent


@dataclass(frozen=True, slots=True)
class Place:
    """Ring that computes a request, and its number there."""

    ring: int
    request_id: int
    submitted_tokens: int
    """Tokens of its answer that the ring was told of when its present epoch took the request."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of an answer."""

    at_unix_s: float
    finish_reason: str | None
    """None: it has failed, or nobody wanted it any more."""
    stop_reason: str | int | None = None
    error: str = ""
    """Why it has failed, a sentence; empty without a reason: its client went away."""


class EarlierAnswer(Protocol):
    """Answer that an earlier coordinator has begun."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the answer so far."""

    @property
    def place(self) -> Place | None:
        """Ring that computes it; None: none is known."""

    @property
    def held_tokens(self) -> int:
        """The first tokens of which every stage of its ring holds KV; 0: not known of any."""


class AnswerLog(Protocol):
    """Log of one request under way."""

    @property
    def before(self) -> EarlierAnswer | None:
        """Answer as an earlier coordinator has kept it; its tokens are not generated again."""

    def begin(self) -> None:
        """Keep it from now on."""

    def submitted(self, place: Place) -> None:
        """Note which ring computes it."""

    def took(self, event: TokenEvent) -> None:
        """Note tokens that came, and its end with the last one."""

    def ended(self, how: Ending) -> None:
        """Note its end; of several the first counts."""
