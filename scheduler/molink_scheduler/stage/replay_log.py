"""Log of the rows that a stage has sent of live requests, which feeds a replaced neighbour or the
shadow of one (`shadow_feed`).

In host memory, up to a bound. Over it the request that has been here longest loses its log as a
whole: half of one is worth nothing, and what is short is quickly sent again. What has been promised
to a neighbour (`begin_epoch`) stays until it is sent. The rows of a token that is sent twice,
because the ring went back, are kept as they were sent last. Rows of drafts are there as well, and
count as guesses until the request's next span says which came true: a shadow, which is fed each row
once, is fed none of them before.

Pure: rows are bytes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    FoldBlocks,
    KeepBlocks,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.resume import Resume
from molink_scheduler.stage.block_rows import BlockRows
from molink_scheduler.stage.sent_rows import SentRows, joined_rows


class Lengths(NamedTuple):
    """Length of a request's prompt, and how long it may become."""

    prompt_tokens: int
    tokens_expected: int


@dataclass(slots=True)
class ReplayLog:
    """Bounded log of one stage's sent rows, by request."""

    bytes_max: float
    blocks: BlockRows = field(init=False, default_factory=BlockRows)
    """Rows of cached blocks."""
    _sent_bytes: int = field(init=False, default=0)
    """Bytes of the requests' rows."""
    _sent: dict[int, list[SentRows]] = field(init=False, default_factory=dict)
    """Rows of each request in order and without a gap from token 0, the oldest request first."""
    _promised: set[int] = field(init=False, default_factory=set)
    _lengths: dict[int, Lengths] = field(init=False, default_factory=dict)
    """Lengths of the requests whose rows are here, as they were admitted."""
    _held: dict[int, int] = field(init=False, default_factory=dict)
    """Tokens of each request that the replaced neighbour holds and is not sent again."""
    _guesses: dict[int, int] = field(init=False, default_factory=dict)
    """Number of drafts among the last rows of each request, where there are some."""

    @property
    def bytes_held(self) -> int:
        """Bytes of all rows."""
        return self._sent_bytes + self.blocks.bytes_held

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Note how long requests may become, before rows of them are kept; those that begin with
        cached blocks begin with the rows of these."""
        for one in admissions:
            self._lengths[one.request_id] = Lengths(one.prompt_tokens, one.tokens_expected)
            self._adopt(one)
            for rows in self.blocks.begun(one):
                self.add(one.request_id, rows)

    def change_cache(self, change: CacheChange) -> None:
        """Keep the rows of blocks that are cached, for requests that will begin with them."""
        match change:
            case KeepBlocks(kept):
                for one in kept:
                    for place, number in enumerate(one.numbers, one.first_block):
                        self._keep_block(one.request_id, place, number)
            case DropBlocks():
                for number in change.numbers:
                    self.blocks.drop(number)
            case RetainBlocks():
                for number in self.blocks.numbers():
                    if number not in change:
                        self.blocks.drop(number)
                    elif number in change.away:  # Then the replaced neighbour has it, too.
                        self.blocks.not_owed(number)
            case LowerBlocks() | FetchBlocks() | FoldBlocks():
                pass  # The rows of a block are here wherever the block is.
            case _:
                assert_never(change)

    def _adopt(self, admission: Admission) -> None:
        """Keep the rows of cached blocks that a replaced stage has computed for a request."""
        if admission.request_id in self._sent and not admission.kept_tokens:
            for place, number in self.blocks.lacking(admission):
                self._keep_block(admission.request_id, place, number)

    def _keep_block(self, request_id: int, place: int, number: int) -> None:
        start, end = place * BLOCK_TOKENS, (place + 1) * BLOCK_TOKENS
        if self.has(request_id, end):
            self.blocks.keep(number, [*self.between(request_id, start, end, BLOCK_TOKENS)])

    def lengths(self, request_id: int) -> Lengths | None:
        """How long a request is; None: it was not noted."""
        return self._lengths.get(request_id)

    def ends(self) -> Iterator[tuple[int, int]]:
        """Pairs (request, how many tokens have their rows here for good), oldest request first."""
        guesses = self._guesses
        return (
            (one, pieces[-1].end - guesses.get(one, 0))
            for one, pieces in self._sent.items()
            if pieces
        )

    def add(self, request_id: int, sent: SentRows, guesses: int = 0) -> None:
        """Keep rows that leave, the last ones of `guesses` drafts. Those of a request whose first
        ones are not here are of no use."""
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
        self._sent_bytes += len(sent.rows)
        self._guesses.pop(request_id, None)
        if guesses:
            self._guesses[request_id] = guesses
        while self.bytes_held > self.bytes_max and self.blocks.drop_oldest():
            pass
        while self.bytes_held > self.bytes_max and self._sent.keys() - self._promised:
            self.forget(next(one for one in self._sent if one not in self._promised))

    def has(self, request_id: int, tokens: int) -> bool:
        """Whether the rows of a request's first `tokens` tokens are here."""
        pieces = self._sent.get(request_id, ())
        return any(piece.end >= tokens for piece in pieces[-1:])

    def between(self, request_id: int, start: int, end: int, rows_max: int) -> Iterator[SentRows]:
        """The rows of a request's tokens [start, end), at most `rows_max` at a time unless they
        were sent as more."""
        waiting: list[SentRows] = []
        pieces = self._sent[request_id]
        for piece in pieces[bisect_right(pieces, start, key=_end) :]:
            if piece.start >= end:
                break
            if waiting and piece.end - waiting[0].start > rows_max:
                yield joined_rows(waiting)
                waiting = []
            waiting.append(piece.between(start, end))
        if waiting:
            yield joined_rows(waiting)

    def batches(
        self, batch: Batch, admission: Admission, rows_max: int
    ) -> Iterator[tuple[Batch, SentRows]]:
        """Rows that a replaced neighbour lacks of a request that `batch` admits, before that batch
        is sent: a batch for each piece of at most `rows_max` rows."""
        if not admission.kept_tokens:
            yield from self._refilled(batch, admission, rows_max)
            return
        held = self._held.pop(admission.request_id, 0)
        if held == admission.kept_tokens:
            self._promised.discard(admission.request_id)
            return
        admissions: tuple[Admission, ...] = (replace(admission, kept_tokens=held),)
        for sent in self.between(admission.request_id, held, admission.kept_tokens, rows_max):
            yield _replayed(batch, admission, sent, admissions), sent
            admissions = ()
        self._promised.discard(admission.request_id)

    def _refilled(
        self, batch: Batch, admission: Admission, rows_max: int
    ) -> Iterator[tuple[Batch, SentRows]]:
        """The rows of the cached blocks that it begins with and the neighbour lacks: behind those
        that it has, as rows of the request itself, which then keeps them for the cache."""
        for sent, begun in self.blocks.take_owed(admission, max(1, rows_max // BLOCK_TOKENS)):
            yield _replayed(batch, admission, sent, begun), sent

    def begin_epoch(self, resume: Resume) -> None:
        """Keep the rows of the requests that go on, and surely those that are to be sent again."""
        self.blocks.begin_epoch(stay=resume.chains_stay, owed=resume.replays)
        kept = {request_id for request_id, _ in resume.requests}
        for request_id in self._sent.keys() - kept:
            self.forget(request_id)
        self._promised = kept if resume.replays else set()
        self._held = dict(resume.next_keeps) if resume.replays else {}

    def forget(self, request_id: int) -> None:
        """Drop a request's rows; one that is unknown is fine."""
        self._promised.discard(request_id)
        self._lengths.pop(request_id, None)
        self._guesses.pop(request_id, None)
        self._sent_bytes -= sum(len(piece.rows) for piece in self._sent.pop(request_id, ()))

    def shed(self) -> None:
        """Drop all rows but those that have been promised, or are owed: their memory is needed."""
        self.blocks.drop_all()
        for request_id in self._sent.keys() - self._promised:
            self.forget(request_id)

    def _go_back(self, pieces: list[SentRows], start: int) -> None:
        """Drop rows from token `start` on."""
        while pieces and pieces[-1].end > start:
            last = pieces.pop()
            self._sent_bytes -= len(last.rows)
            if last.start < start:
                pieces.append(last.between(0, start))
                self._sent_bytes += len(pieces[-1].rows)


def _end(piece: SentRows) -> int:
    return piece.end


def _replayed(
    batch: Batch, admission: Admission, sent: SentRows, admissions: tuple[Admission, ...]
) -> Batch:
    """Batch of rows that are sent again before another one."""
    span = Span(admission.request_id, sent.start, sent.end, samples=False)
    return Batch(batch.batch_id, PREFILL, -1, (span,), admissions, batch.codec, replay=True)
