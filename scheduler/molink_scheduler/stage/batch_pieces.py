"""Prefill in other pieces than it came in: rows of batches cut off and laid together.

A stage computes whatever prefix has arrived when its device is free. So it may take two spans that
came one after the other in one step, or only the first rows of a span that would hold the device
too long. Rows keep their order; what is cut remains a span of the same request.
"""

from collections.abc import Sequence
from dataclasses import replace

from molink_scheduler.batch import Batch, Span

__all__ = ["cut_rows", "join_batches"]


def cut_rows(batch: Batch, start: int, end: int) -> Batch:
    """Rows [start, end) of a batch; its admissions stay with the piece that holds its first row."""
    if not 0 <= start < end <= batch.tokens:
        raise ValueError(f"rows [{start}, {end}) of a batch of {batch.tokens}")
    if (start, end) == (0, batch.tokens):
        return batch
    spans: list[Span] = []
    row = 0
    for span in batch.spans:
        first, last = max(start, row), min(end, row + span.tokens)
        if first < last:
            spans.append(_cut_span(span, first - row, last - row))
        row += span.tokens
    return replace(batch, spans=tuple(spans), admissions=batch.admissions if start == 0 else ())


def join_batches(batches: Sequence[Batch]) -> Batch:
    """One batch of the rows of all, in order, under the first one's id."""
    spans: list[Span] = []
    for span in (span for batch in batches for span in batch.spans):
        if spans and spans[-1].request_id == span.request_id and spans[-1].end == span.start:
            spans[-1] = replace(spans[-1], end=span.end, samples=span.samples)
        else:
            spans.append(span)
    admissions = tuple(admission for batch in batches for admission in batch.admissions)
    return replace(batches[0], spans=tuple(spans), admissions=admissions)


def _cut_span(span: Span, first: int, last: int) -> Span:
    samples = span.samples and last == span.tokens
    return Span(span.request_id, span.start + first, span.start + last, samples)
