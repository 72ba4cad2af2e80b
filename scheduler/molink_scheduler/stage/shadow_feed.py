"""What the shadow of the next stage lacks, and what it is sent next.

A shadow holds the layers of the stage behind this one, and is to hold its KV as well. It computes
that from the rows that this stage has sent: they are in the replay log, so they are read there by a
position for each request, and nothing is queued for the shadow. Who lacks least is sent first: most
requests are level with the ring then, and wait for nothing when the stage is lost. Several share a
batch, because a shadow that read its weights once for every row would fall behind.

Where the line has no room, requests fall behind for good. Those that lack half of their tokens for
20 s are left to replay, which sends what they lack in the same order: the shadow frees their KV,
and they are not tried again. Releases go before rows, in order with them, so that a shadow
never holds more requests than the ring does.

Pure: the caller says when the line has room, and for how many bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows

LEFT_SHARE, LEFT_AFTER_S = 0.5, 20.0
"""A request that lacks this share of its tokens for so long gains little: a prompt of 1,000 tokens
of a 70B model takes 0.7 s of a line of 100 Mbps, 7 s of what a tenth of it leaves."""


class ShadowBatch(NamedTuple):
    """Rows for a shadow, in the order of the batch's spans."""

    batch: Batch
    sent: tuple[SentRows, ...]


@dataclass(slots=True)
class ShadowFeed:
    """Reader of one stage's replay log for the shadow of the stage behind it."""

    log: ReplayLog
    rows_max: int
    """Most rows of one batch."""
    _positions: dict[int, int] = field(init=False, default_factory=dict)
    """Tokens of each request that were handed out."""
    _level_at: dict[int, float] = field(init=False, default_factory=dict)
    """Time at which each request lacked nothing last, or was first seen."""
    _left: set[int] = field(init=False, default_factory=set)
    """Requests that are left to replay."""
    _released: list[int] = field(init=False, default_factory=list)
    """Released requests that the shadow has not been told of; at most as many as it holds."""
    _batches: int = field(init=False, default=0)

    def restart(self) -> None:
        """Another shadow, or the same in another epoch: it holds nothing."""
        self._positions.clear()
        self._level_at.clear()
        self._left.clear()
        self._released.clear()

    def release(self, request_id: int) -> None:
        """A request was forgotten: its KV is needed for others."""
        if self._positions.pop(request_id, 0):
            self._released.append(request_id)
        self._level_at.pop(request_id, None)
        self._left.discard(request_id)

    def next(self, codec: str, bytes_max: int, now: float) -> Release | ShadowBatch | None:
        """Message to send next: about `bytes_max` of rows, one row at least; None: nothing."""
        self._leave_hopeless(now)
        if self._released:
            return Release(self._released.pop(0))
        picked = list(self._picked(bytes_max, now))
        if not picked:
            return None
        self._batches += 1
        spans = tuple(Span(one, sent.start, sent.end, samples=False) for one, sent in picked)
        admissions = tuple(self._admission(one) for one, sent in picked if not sent.start)
        batch = Batch(self._batches, PREFILL, -1, spans, admissions, codec, replay=True)
        return ShadowBatch(batch, tuple(sent for _, sent in picked))

    def behind_tokens(self) -> int:
        """Rows of all live requests that were not handed out, those left to replay among them."""
        return sum(end - self._positions.get(one, 0) for one, end in self.log.ends())

    def behind_s(self, now: float) -> float:
        """Longest time that a request has lacked rows."""
        return max((now - self._level_at.get(one, now) for one, _ in self._lacking()), default=0.0)

    def _lacking(self) -> Iterator[tuple[int, int]]:
        """Pairs (request, its tokens) of those that lack some."""
        for request_id, end in self.log.ends():
            if self._positions.get(request_id, 0) < end:
                yield request_id, end

    def _picked(self, bytes_max: int, now: float) -> Iterator[tuple[int, SentRows]]:
        lags = [
            (end - self._positions.get(request_id, 0), request_id, end)
            for request_id, end in self._lacking()
            if request_id not in self._left and self.log.lengths(request_id) is not None
        ]
        rows_left, bytes_left = self.rows_max, bytes_max
        for lag, request_id, end in sorted(lags):
            sent = self._rows(request_id, end - lag, end, rows_left, bytes_left)
            if sent is None or (rows_left < self.rows_max and len(sent.rows) > bytes_left):
                return
            rows_left -= sent.end - sent.start
            bytes_left -= len(sent.rows)
            self._positions[request_id] = sent.end
            if sent.end == end:
                self._level_at[request_id] = now
            yield request_id, sent

    def _rows(
        self, request_id: int, start: int, end: int, rows_max: int, bytes_max: int
    ) -> SentRows | None:
        """The first rows from `start` on that fit, one at least; None: no row fits."""
        if rows_max < 1:
            return None
        first = next(self.log.between(request_id, start, min(end, start + rows_max), rows_max))
        row_bytes = max(1, len(first.rows) // (first.end - first.start))
        return first.between(start, start + max(1, bytes_max // row_bytes))

    def _admission(self, request_id: int) -> Admission:
        """Admission without sampling: a shadow hears of that when it takes the stage's place."""
        lengths = self.log.lengths(request_id)
        assert lengths is not None, "only what was admitted is picked"
        return Admission(request_id, *lengths, SamplingParams(1))

    def _leave_hopeless(self, now: float) -> None:
        """Leave to replay what is too far behind, and what has lost its log."""
        logged = dict(self.log.ends())
        for request_id, end in logged.items():
            lag = end - self._positions.get(request_id, 0)
            since = self._level_at.setdefault(request_id, now)
            if lag > LEFT_SHARE * end and now - since > LEFT_AFTER_S:
                self._leave(request_id)
        for request_id in self._positions.keys() - logged.keys():
            self._leave(request_id)

    def _leave(self, request_id: int) -> None:
        self._left.add(request_id)
        if self._positions.pop(request_id, 0):
            self._released.append(request_id)
