"""Rows of a step as mixers take them: which go one by one, and on whose state, or on a copy of it.

The state of a request stands behind the last of its tokens that is surely known. Drafts behind that
are computed on a copy, which nobody keeps: one state is as large as the KV of thousands of tokens,
so neither is one kept for each draft, nor one to go back to. The rows of drafts are kept instead
(`StatePool.carry`), and those that came true are computed once more in the request's next span,
before its own: its start says which they are.

Rows beside drafts go one by one, like decode rows and by the same path of the library, so the
numbers are the same whatever was drafted. They form *runs*: one of each request. On a GPU the first
rows of all runs share a call, then the second ones of those that are long enough, and so on.

Shapes: T rows of the step, R rows of a call.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from molink.engine.memory.state_pool import LaggingRows, Slots, StatePool
from molink_scheduler.batch import DRAFTS_MAX, Batch


@dataclass(frozen=True, slots=True)
class RecurrentSpan:
    """Rows of one request within a step."""

    row: int
    """First row of the span in the step."""
    tokens: int
    slot: int
    has_state: bool
    """Whether rows of the request have been computed before."""
    drafts: int = 0
    """How many of its last rows are drafts."""
    again: range = range(0)
    """Rows behind the step's own that come before the span: kept drafts that came true."""

    @property
    def goes_by_row(self) -> bool:
        """Whether its known rows go one by one: where it is a request's next row, and where drafts
        are in play."""
        return self.has_state and bool(self.tokens == 1 or self.drafts or self.again)

    @property
    def known(self) -> range:
        """Rows of its own whose tokens are known."""
        return range(self.row, self.row + self.tokens - self.drafts)

    @property
    def drafted(self) -> range:
        """Rows of its own that are drafts."""
        return range(self.row + self.tokens - self.drafts, self.row + self.tokens)


def recurrent_spans(batch: Batch, states: StatePool) -> list[RecurrentSpan]:
    """The spans of a batch, each with its request's slot."""
    spans, row, behind = [], 0, batch.tokens
    for span in batch.spans:
        slot, again = states.take(span.request_id), states.passed(span)
        drafts, kept = len(span.drafts), range(behind, behind + again)
        spans.append(RecurrentSpan(row, span.tokens, slot, span.start > 0, drafts, kept))
        row, behind = row + span.tokens, behind + again
    return spans


def decode_index(spans: Sequence[RecurrentSpan]) -> list[int]:
    """Rows and slots of all runs, and then places and rows of drafts that are kept, of which some
    come true."""
    again = [_place(span, n) for span in spans for n in range(len(span.again))]
    rows = [row for span in spans for row in span.drafted]
    places = [_place(span, n) for span in spans for n in range(span.drafts)]
    return [*Runs.known(spans).index, *Runs.drafted(spans).index, *again, *rows, *places]


def lagging_rows(spans: Sequence[RecurrentSpan], index: torch.Tensor) -> LaggingRows | None:
    """Rows of drafts in a step whose `decode_index` is `index` on the device; None: it has none."""
    drafts, again = sum(span.drafts for span in spans), sum(len(span.again) for span in spans)
    if not drafts and not again:
        return None
    tail = index[len(index) - again - 2 * drafts :]
    return LaggingRows(*torch.split(tail, [again, drafts, drafts]))


@dataclass(frozen=True, slots=True)
class MixerCall:
    """Call of a mixer: B sequences of N rows each."""

    rows: slice | torch.Tensor
    """Place of the rows: of one sequence a slice, of decode rows their index [B]."""
    slots: Slots
    has_state: bool
    depth: int | None = None
    """Place of drafts behind known rows, from 0 on: the first ones begin with copies of the states,
    the others go on with those of the call before. None: the rows are known."""

    def of(self, value_1T: torch.Tensor) -> torch.Tensor:
        """Rows [B, N, ...] of this call in a [1, T, ...] tensor."""
        return (
            value_1T[:, self.rows] if isinstance(self.rows, slice) else value_1T[0, self.rows, None]
        )


def mixer_calls(
    spans: Sequence[RecurrentSpan], index: torch.Tensor, rows_max: int, *, continues: bool
) -> list[MixerCall]:
    """The calls that compute all rows of some spans, at most `rows_max` runs together, for a mixer
    that `continues` in mid-prompt or not; `index` is `decode_index` on the device."""
    known, drafted = Runs.known(spans), Runs.drafted(spans)
    by_row = known.calls(index[: len(known.index)], rows_max)
    whole = [call for span in spans if not span.goes_by_row for call in _calls(span, continues)]
    return [*by_row, *whole, *drafted.calls(index[len(known.index) :], rows_max, copied=True)]


def _calls(span: RecurrentSpan, continues: bool) -> Iterator[MixerCall]:
    size = len(span.known) if continues or not span.has_state else 1
    for row in range(span.known.start, span.known.stop, size):
        yield MixerCall(slice(row, row + size), (span.slot,), span.has_state)


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows that requests take one by one, the longest run first."""

    runs: Sequence[tuple[int, Sequence[int]]]
    """Slot and rows of each."""
    counts: Sequence[int]
    """How many runs have an n-th row, for each n."""

    @classmethod
    def of(cls, runs: Iterable[tuple[int, Sequence[int]]]) -> "Runs":
        """Runs in their order: those that are as long as each other stay in the one given."""
        ordered = sorted(runs, key=lambda run: -len(run[1]))
        lengths = [len(rows) for _, rows in ordered]
        depths = range(max(lengths, default=0))
        return cls(ordered, [sum(length > depth for length in lengths) for depth in depths])

    @classmethod
    def known(cls, spans: Iterable[RecurrentSpan]) -> "Runs":
        """Known rows of spans that go by row."""
        return cls.of((one.slot, (*one.again, *one.known)) for one in spans if one.goes_by_row)

    @classmethod
    def drafted(cls, spans: Iterable[RecurrentSpan]) -> "Runs":
        """Runs of those rows of spans that are drafts."""
        return cls.of((one.slot, one.drafted) for one in spans if one.drafts)

    @property
    def index(self) -> list[int]:
        """For each n, the n-th rows and then the slots of the runs that have one."""
        found = list[int]()
        for depth, count in enumerate(self.counts):
            found += [rows[depth] for _, rows in self.runs[:count]]
            found += [slot for slot, _ in self.runs[:count]]
        return found

    def calls(
        self, index: torch.Tensor, rows_max: int, *, copied: bool = False
    ) -> Iterator[MixerCall]:
        """Calls of some runs, depth by depth, and then of others; `index` is that of all on the
        device. `copied`: they leave the states as they are."""
        for first in range(0, len(self.runs), rows_max):
            offset = 0
            for depth, count in enumerate(self.counts):
                end = min(first + rows_max, count)
                if end - first == 1 and not copied:
                    yield self._alone(first, depth)
                elif first < end:
                    rows, slots = (index[at + first : at + end] for at in (offset, offset + count))
                    yield MixerCall(rows, slots, has_state=True, depth=depth if copied else None)
                offset += 2 * count

    def _alone(self, run: int, depth: int) -> MixerCall:
        """Call for one row, which writes straight into the pool."""
        slot, rows = self.runs[run]
        return MixerCall(slice(rows[depth], rows[depth] + 1), (slot,), has_state=True)


def _place(span: RecurrentSpan, number: int) -> int:
    """Place in which the span's request keeps its n-th draft."""
    return span.slot * DRAFTS_MAX + number
