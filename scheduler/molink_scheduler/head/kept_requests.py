"""Requests that go on from the ring's epoch before, as the head of the next one takes them up.

Survivors keep their KV (`resume`), and each goes on when it is submitted again. One that is not, or
that a stage has lost, is released everywhere, which stages without it pass on.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink_scheduler.head.sequence import Sequence
from molink_scheduler.resume import Resume


@dataclass(slots=True)
class KeptRequests:
    """Requests of the epoch before that have not been submitted again."""

    resume: Resume = field(default_factory=Resume)
    """Requests and cached blocks that survivors keep from the ring's epoch before."""
    missing: frozenset[int] = frozenset()
    """Requests that others may have kept, and this head not."""
    _tokens: dict[int, int] = field(init=False)
    """Tokens of each request that was kept."""

    def __post_init__(self) -> None:
        self._tokens = dict(self.resume.requests)

    @property
    def tokens(self) -> Iterable[tuple[int, int]]:
        """Pairs (request, tokens of which KV is held)."""
        return self._tokens.items()

    def take_up(self, sequence: Sequence) -> str | None:
        """Let a request that is submitted go on from what was kept of it; why it cannot."""
        request_id = sequence.request_id
        kept = self._tokens.get(request_id, 0)
        if kept >= len(sequence.known):
            return f"request {request_id} has fewer tokens than were kept of it"
        if self._tokens.pop(request_id, 0):
            sequence.keep(kept, fresh=self.resume.fresh)
        return None

    def forget(self, request_id: int) -> bool:
        """Forget a request that does not go on after all; whether anybody may hold KV of it."""
        return self._tokens.pop(request_id, None) is not None or request_id in self.missing

    def ends_replay(self, sequence: Sequence) -> bool:
        """Whether a sequence that stops was being fed to the next stage again: of these rows
        nothing comes back, so one more follows them, which does."""
        if not (self.resume.next_fresh and sequence.is_fed_again):
            return False
        sequence.feed_no_further()
        return True
