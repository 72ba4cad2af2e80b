"""Rows cut off and laid together are the same rows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import SamplingParams
from molink_scheduler.stage.batch_pieces import cut_rows, join_batches

ADMISSION = Admission(1, 10, 20, SamplingParams(max_tokens=4))


@st.composite
def prefill_batches(draw):
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    spans = tuple(
        Span(number, 5, 5 + length, draw(st.booleans())) for number, length in enumerate(lengths, 1)
    )
    return Batch(7, BatchClass.PREFILL, -1, spans, (ADMISSION,))


@given(prefill_batches(), st.data())
def test_pieces_laid_together_are_the_whole(batch, data):
    cuts = data.draw(st.sets(st.integers(1, batch.tokens)).map(lambda c: sorted(c | {0})))
    edges = sorted({*cuts, batch.tokens})
    pieces = [cut_rows(batch, a, b) for a, b in pairwise(edges)]
    assert [piece.tokens for piece in pieces] == [b - a for a, b in pairwise(edges)]
    assert sum(len(piece.admissions) for piece in pieces) == 1
    assert sum(span.samples for piece in pieces for span in piece.spans) == sum(
        span.samples for span in batch.spans
    )
    assert join_batches(pieces) == batch


def test_spans_of_different_requests_stay_apart():
    first = Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, 4, True),))
    second = Batch(2, BatchClass.PREFILL, -1, (Span(2, 4, 9, False),))
    assert join_batches([first, second]).spans == (Span(1, 0, 4, True), Span(2, 4, 9, False))
