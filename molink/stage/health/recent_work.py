"""Recent work of a stage, for its health reports: prompts on the head, sketches of rows if wanted,
and how many micro-batches were here.

A report may be lost on its way, so each tells of the last seconds. Times are on the stage's own
clock.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from molink.stage_protocol.health import (
    PIECES_MAX,
    PROMPTS_MAX,
    REASON_CHARS_MAX,
    REFUSED_MAX,
)
from molink_scheduler.batch import DECODE, MICRO_BATCH_COUNT_MAX, Batch, BatchClass, Span
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    RequestCancelled,
    RequestSubmitted,
    StageEvent,
)

REPORTED_S = 2.5
"""Seconds that work is reported after it has ended: reports come twice a second, and some may be
lost."""

WAITING_MAX = 8192
"""Requests whose arrival is known while they wait: twice what a coordinator has on a ring."""

DIGITS = 6
"""Microseconds."""


@dataclass(slots=True)
class _Prompt:
    """Prompt that the head has begun to compute."""

    arrived_at: float
    waited_s: float
    moved_at: float
    tokens: int = 0
    """Tokens sent into the ring so far."""


@dataclass(slots=True)
class _Presence:
    """Mean number of micro-batches at a place since the last report."""

    reported_at: float | None = None
    _since: dict[int, float] = field(default_factory=dict)
    """Arrival times of the micro-batches that are there, by slot."""
    _gone_s: float = 0.0
    """Seconds of those that have left since the last report, together."""

    def came(self, batch_class: BatchClass, slot: int, now: float) -> None:
        """A batch is there; prompts do not count, nor slots that no ring has."""
        if batch_class is DECODE and 0 <= slot < MICRO_BATCH_COUNT_MAX:
            self.left(slot, now)  # One that never left was lost on its way.
            self._since[slot] = now

    def left(self, slot: int, now: float) -> None:
        """A batch has left; one that was not there changes nothing."""
        came_at = self._since.pop(slot, None)
        if came_at is not None:
            self._gone_s += now - max(came_at, self.reported_at or came_at)

    def mean(self, now: float) -> float:
        """Mean number since the last call."""
        began, self.reported_at = self.reported_at, now
        gone_s, self._gone_s = self._gone_s, 0.0
        if began is None or now <= began:
            return 0.0
        here_s = sum(now - max(came_at, began) for came_at in self._since.values())
        return round((gone_s + here_s) / (now - began), 3)


@dataclass(slots=True)
class RecentWork:
    """Bounded record of a stage's latest prompts."""

    is_head: bool
    _arrived_at: dict[int, float] = field(default_factory=dict)
    """Arrival time of each request that waits on the head."""
    _prompts: dict[int, _Prompt] = field(default_factory=dict)
    """Prompts by request, in the order in which they began."""
    _pieces: deque[tuple[int, int, int, float, float]] = field(
        default_factory=lambda: deque(maxlen=PIECES_MAX)
    )
    """Pieces as in `StageHealth`, and when each began."""
    _refused: deque[tuple[int, str, float]] = field(
        default_factory=lambda: deque(maxlen=REFUSED_MAX)
    )
    """Refused requests as in `StageHealth`, and when."""
    _held: _Presence = field(default_factory=_Presence)
    _circling: _Presence = field(default_factory=_Presence)
    """Presence on the whole ring; only on the head."""

    def received(self, event: StageEvent, now: float) -> None:
        """A message has arrived."""
        match event:
            case RequestSubmitted(request):
                if len(self._arrived_at) >= WAITING_MAX:
                    del self._arrived_at[next(iter(self._arrived_at))]
                self._arrived_at[request.request_id] = now
            case RequestCancelled(request_id):
                self._arrived_at.pop(request_id, None)
            case BatchArrived(batch):
                self._held.came(batch.batch_class, batch.micro_batch, now)
            case BatchReturned(batch_class, micro_batch) if batch_class is DECODE:
                self._circling.left(micro_batch, now)
            case _:
                pass

    def refused(self, request_id: int, reason: str, now: float) -> None:
        """The head cannot compute a request that has come."""
        self._arrived_at.pop(request_id, None)
        self._refused.append((request_id, reason[:REASON_CHARS_MAX], now))

    def begins(self, batch: Batch, now: float) -> None:
        """The stage begins to compute a batch."""
        if not self.is_head:
            return
        if batch.batch_class is DECODE:
            for presence in (self._held, self._circling):
                presence.came(batch.batch_class, batch.micro_batch, now)
            return
        for span in batch.spans:
            self._take_span(span, now)

    def _take_span(self, span: Span, now: float) -> None:
        prompt = self._prompts.get(span.request_id)
        if prompt is None:
            self._make_room(now)
            arrived_at = self._arrived_at.pop(span.request_id, now)
            prompt = _Prompt(arrived_at, now - arrived_at, now)
            self._prompts[span.request_id] = prompt
        prompt.tokens, prompt.moved_at = span.end, now
        after_s = round(now - prompt.arrived_at, DIGITS)
        self._pieces.append((span.request_id, span.start, span.end, after_s, now))

    def _make_room(self, now: float) -> None:
        """Make room for one more prompt."""
        old = [one for one, prompt in self._prompts.items() if now - prompt.moved_at > REPORTED_S]
        for request_id in old:
            del self._prompts[request_id]
        while len(self._prompts) >= PROMPTS_MAX:
            del self._prompts[next(iter(self._prompts))]

    def with_waits(self, batch: Batch) -> Batch:
        """Batch as it leaves the head: its new requests bear how long they waited."""
        if not (self.is_head and batch.admissions):
            return batch
        waits = {one: prompt.waited_s for one, prompt in self._prompts.items()}
        admissions = tuple(
            replace(one, waited_s=waits.get(one.request_id, 0.0)) for one in batch.admissions
        )
        return replace(batch, admissions=admissions)

    def ended(self, batch: Batch, now: float) -> None:
        """A step has ended."""
        if batch.batch_class is DECODE:
            self._held.left(batch.micro_batch, now)

    def prompts(self, now: float) -> tuple[tuple[int, int, float], ...]:
        """Value of `StageHealth.recent_prompts` as of now."""
        return tuple(
            (request_id, prompt.tokens, round(prompt.waited_s, DIGITS))
            for request_id, prompt in self._prompts.items()
            if now - prompt.moved_at <= REPORTED_S
        )

    def pieces(self, now: float) -> tuple[tuple[int, int, int, float], ...]:
        """Value of `StageHealth.recent_pieces` as of now."""
        return tuple(piece[:4] for piece in self._pieces if now - piece[4] <= REPORTED_S)

    def refusals(self, now: float) -> tuple[tuple[int, str], ...]:
        """Value of `StageHealth.recent_refused` as of now."""
        return tuple(one[:2] for one in self._refused if now - one[2] <= REPORTED_S)

    def micro_batches(self, now: float) -> tuple[float, float | None]:
        """Mean number of micro-batches here since the last call; and on the head those of the ring,
        None elsewhere."""
        circling = self._circling.mean(now)
        return self._held.mean(now), circling if self.is_head else None
