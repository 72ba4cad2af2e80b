"""What a head asks its drafters, and what they answer: drafts are facts to the core.

A core that decides with drafts must be told them like everything else, or its log could not be
played again (`recording.event_log`) and a simulator would have to load models.

Pure.
"""

from dataclasses import dataclass
from typing import NamedTuple

from molink_scheduler.drafting.proposals import COPY
from molink_scheduler.request import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """Question what may follow the known tokens of one request."""

    request_id: int
    start: int
    """Position of the first of `tokens`: those before it were told with earlier questions."""
    tokens: tuple[int, ...]
    """Tokens known that were not told yet, at least one; all of them in a ring's new epoch."""
    sampling: SamplingParams
    width: int
    """Most drafts of a model that are of use; at least one of this and `copies` is of use."""
    copies: int = 0
    """Most tokens that are of use if they are copied."""
    prediction: tuple[int, ...] = ()
    """Text that the answer may repeat, where `start` is 0."""

    @property
    def position(self) -> int:
        """Position of the first draft."""
        return self.start + len(self.tokens)

    def width_of(self, by: str) -> int:
        """Most drafts that are of use if they are made by a drafter of this name."""
        return self.copies if by == COPY else self.width


class Draft(NamedTuple):
    """Answer to one question."""

    request_id: int
    position: int
    """Position of the first of `token_ids`, as asked."""
    token_ids: tuple[int, ...]
    """Guesses in order, no more than asked for; none where nothing is likely."""
    by: str = ""
    """Name of who made them."""


@dataclass(frozen=True, slots=True)
class AskDrafts:
    """Decision: have drafters guess, and tell `Drafted` for each of these, soon: requests that came
    back together go round once all answers are there."""

    asks: tuple[DraftAsk, ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """Fact: drafters have answered."""

    drafts: tuple[Draft, ...]
    step_s: float = 0.0
    """Usual seconds of theirs for one more draft of all who ask."""
