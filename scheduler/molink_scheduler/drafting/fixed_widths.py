"""What a head's widths are asked, and widths that an operator sets.

Pure.
"""

from dataclasses import dataclass
from typing import Protocol

from molink_scheduler.drafting.acceptance import DraftKind
from molink_scheduler.timing.round_tracker import RoundTracker


class Widths(Protocol):
    """Judge of how many drafts are worth it."""

    def width(self, request_id: int, kind: DraftKind) -> int:
        """Drafts of a kind to ask for now; 0: none."""

    def probes(self, request_id: int, kind: DraftKind) -> bool:
        """Whether one is to be made all the same, and compared only, where `width` is 0."""

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        """Learn that the first `right` of a span's `tried` drafts came true."""

    def drafted(self, step_s: float) -> None:
        """One more draft of all takes the head's drafters so long."""

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """One of `count` micro-batches is back; what the next ones will cost, and what prompts take
        of the devices."""

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """The same width for all, whatever comes true."""

    drafts: int

    def width(self, request_id: int, kind: DraftKind) -> int:
        """The fixed width, for every request."""
        return self.drafts

    def probes(self, request_id: int, kind: DraftKind) -> bool:
        """Never: nothing is judged."""
        return False

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        """Take no notice: the width is fixed."""

    def drafted(self, step_s: float) -> None:
        """Take no notice: the width is fixed."""

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """Take no notice: the width is fixed."""

    def forget(self, request_id: int) -> None:
        """Take no notice: nothing is kept of a request."""
