"""Log of the rows that a stage has sent of live requests, from which a replaced neighbour is fed.

In host memory, up to a bound. Over it the request that has been here longest loses its log as a
whole: half of one is worth nothing, and what is short is quickly sent again. What has been promised
to a neighbour (`go_on`) stays until it is sent. The rows of a token that is sent twice, because
the ring went back, are kept as they were sent last.

Pure: rows are bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.resume import Resume

__all__ = ["ReplayLog", "SentRows"]


class SentRows(NamedTuple):
    """Rows of consecutive tokens [start, end) of one request."""

    start: int
    end: int
    rows: bytes
    """All rows end to end."""
    token_ids: tuple[int, ...] = ()
    """Of the rows, where the model's layers read them."""

    def before(self, end: int) -> "SentRows":
        """Its rows of tokens before `end`."""
        if end >= self.end:
            return self
        tokens = end - self.start
        row_bytes = len(self.rows) // (self.end - self.start)
        return SentRows(self.start, end, self.rows[: tokens * row_bytes], self.token_ids[:tokens])


@dataclass(slots=True)
class ReplayLog:
    """Bounded log of one stage's sent rows, by request."""

    bytes_max: float
    bytes_held: int = field(init=False, default=0)
    _sent: dict[int, list[SentRows]] = field(init=False, default_factory=dict)
    """In order and without a gap from token 0, oldest request first."""
    _promised: set[int] = field(init=False, default_factory=set)

    def add(self, request_id: int, sent: SentRows) -> None:
        """Keep rows that leave. Those of a request whose first ones are not here are of no use."""
        pieces = self._sent.get(request_id)
        if pieces is None:
            if sent.start > 0:
                return
            pieces = self._sent[request_id] = []
        self._go_back(pieces, sent.start)
        if pieces and pieces[-1].end < sent.start:
            self.forget(request_id)
            return
        pieces.append(sent)
        self.bytes_held += len(sent.rows)
        while self.bytes_held > self.bytes_max and self._sent.keys() - self._promised:
            self.forget(next(one for one in self._sent if one not in self._promised))

    def has(self, request_id: int, tokens: int) -> bool:
        """Whether the rows of a request's first `tokens` tokens are here."""
        pieces = self._sent.get(request_id, ())
        return any(piece.end >= tokens for piece in pieces[-1:])

    def first(self, request_id: int, tokens: int, rows_max: int) -> Iterator[SentRows]:
        """The rows of a request's first `tokens` tokens, at most `rows_max` at a time."""
        waiting: list[SentRows] = []
        for piece in self._sent[request_id]:
            if piece.start >= tokens:
                break
            if waiting and piece.end - waiting[0].start > rows_max:
                yield _joined(waiting)
                waiting = []
            waiting.append(piece.before(tokens))
        if waiting:
            yield _joined(waiting)

    def batches(
        self, batch: Batch, admission: Admission, rows_max: int
    ) -> Iterator[tuple[Batch, SentRows]]:
        """What a replaced neighbour lacks of a request that `batch` admits, before that is sent: a
        batch for each piece of at most `rows_max` rows."""
        admissions: tuple[Admission, ...] = (replace(admission, kept_tokens=0),)
        for sent in self.first(admission.request_id, admission.kept_tokens, rows_max):
            span = Span(admission.request_id, sent.start, sent.end, samples=False)
            piece = Batch(
                batch.batch_id, PREFILL, -1, (span,), admissions, batch.codec, replay=True
            )
            yield piece, sent
            admissions = ()
        self._promised.discard(admission.request_id)

    def go_on(self, resume: Resume) -> None:
        """Keep the rows of the requests that go on, and surely those that are to be sent again."""
        kept = {request_id for request_id, _ in resume.requests}
        for request_id in self._sent.keys() - kept:
            self.forget(request_id)
        self._promised = kept if resume.replays else set()

    def forget(self, request_id: int) -> None:
        """Drop a request's rows; one that is unknown is fine."""
        self._promised.discard(request_id)
        self.bytes_held -= sum(len(piece.rows) for piece in self._sent.pop(request_id, ()))

    def shed(self) -> None:
        """Drop all rows but those that have been promised: their memory is needed."""
        for request_id in self._sent.keys() - self._promised:
            self.forget(request_id)

    def _go_back(self, pieces: list[SentRows], start: int) -> None:
        """Drop rows from token `start` on."""
        while pieces and pieces[-1].end > start:
            last = pieces.pop()
            self.bytes_held -= len(last.rows)
            if last.start < start:
                pieces.append(last.before(start))
                self.bytes_held += len(pieces[-1].rows)


def _joined(pieces: list[SentRows]) -> SentRows:
    token_ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
    rows = b"".join(piece.rows for piece in pieces)
    return SentRows(pieces[0].start, pieces[-1].end, rows, token_ids)
