"""A step that finds its device full is tried once more, in two halves; then the stage ends.

The room for a step was measured when the stage loaded, so a full card is one that other programs
have filled since. Torch keeps memory that it does not use, which is given back first, and half the
rows take half of what a step takes beside the weights. A step may be computed again: it writes the
same keys to the same slots. Where it has changed what it reads, it may not: recurrences have moved
their states on, and what was drawn was counted. Prompts are cut anywhere, decode batches between
spans: which drafts are right shows in one step.

A CPU's memory is the PC's. There the rows that a stage keeps for a lost neighbour go first: they
are for what may never be. A system that promises more than it has ends the process instead; then
the ring goes on without it (decision 41).
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch

from molink.engine.step.extended_stage import Executor, parts_of
from molink.engine.step.step_output import StepOutput
from molink.errors import DeviceMemoryError
from molink_scheduler.batch import DECODE, Batch, Span
from molink_scheduler.kv.layer_class import STEP_ROWS_MAX
from molink_scheduler.stage.queue import cut_rows

HOST_IS_FULL = re.compile(r"can't allocate memory|not enough memory|Cannot allocate memory")
"""Errors of a full host: torch's on Linux and on Windows, and the system's; there is no class."""


class TensorInputs(NamedTuple):
    """Inputs of one step: its batch, token ids on the head and where layers read them, rows [T, D]
    elsewhere."""

    batch: Batch
    token_ids: Sequence[int] | None
    hidden_TD: torch.Tensor | None


def computed(
    stage: Executor,
    inputs: TensorInputs,
    interrupt: Callable[[], None] | None = None,
    make_room: Callable[[], None] = lambda: None,
) -> StepOutput:
    """Output of one step (see `StageExecutor.step`), of its two halves where the whole found no
    room on its device; `make_room` gives up what the PC's memory holds and can do without.

    Raises DeviceMemoryError when they found none either, or when the step cannot be repeated.
    """
    rows_max, ends = _rows_max(stage, inputs.batch.tokens), _prompt_ends(stage, inputs.batch)
    if inputs.batch.tokens > rows_max or ends:
        pieces = _pieces(inputs, rows_max, ends)
        return _joined([computed(stage, one, interrupt, make_room) for one in pieces])
    whole = _tried(stage, inputs, interrupt)
    if whole is not None:
        return whole
    rows = inputs.batch.tokens
    if any(part.states.layers for part in parts_of(stage)):
        raise DeviceMemoryError(_sentence(stage, rows, "which cannot be computed twice"))
    make_room()
    outputs = []
    for half in halves(inputs):
        if stage.card is not None:
            stage.card.return_freed()
        output = _tried(stage, half, interrupt)
        if output is None:
            again = f"and again in one of {half.batch.tokens}"
            raise DeviceMemoryError(_sentence(stage, rows, again))
        outputs.append(output)
    return _joined(outputs)


def halves(inputs: TensorInputs) -> tuple[TensorInputs, ...]:
    """Two steps that compute what one does, cut where half of the rows are, or of the spans of
    decode; or one of what cannot be cut. They admit nobody: the step that failed did."""
    batch, token_ids, hidden_TD = inputs
    rows = batch.tokens // 2
    if batch.batch_class is DECODE:
        rows = sum(span.tokens for span in batch.spans[: len(batch.spans) // 2])
    first, rest = _cut(batch.spans, rows)
    return tuple(
        TensorInputs(
            Batch(batch.batch_id, batch.batch_class, batch.micro_batch, spans),
            None if token_ids is None else token_ids[part],
            None if hidden_TD is None else hidden_TD[part],
        )
        for spans, part in ((first, slice(rows)), (rest, slice(rows, None)))
        if spans
    )


def _rows_max(stage: Executor, rows: int) -> int:
    """Rows of a step that there is room for, as many as `rows`: layers with a window have a bound,
    and the own memory of stages whose other blocks lie at lenders."""
    parts = parts_of(stage)
    lent = [part.lending.rows_max for part in parts if part.lending is not None]
    has_windows = any(part.windows.layers for part in parts)
    return min([*lent, STEP_ROWS_MAX if has_windows else rows])


def _prompt_ends(stage: Executor, batch: Batch) -> set[int]:
    """Rows of a batch before which a prompt ends whose KV is cut before the next row: stages lay
    spans of a request together, as those of an answer that is computed again."""
    return {row for part in parts_of(stage) for row in part.cuts.rows_inside(batch)}


def _pieces(
    inputs: TensorInputs, rows_max: int, ends: Collection[int] = ()
) -> Iterator[TensorInputs]:
    """Steps that compute one after the other what one does for which there is no room, or which
    has to end at these rows."""
    batch, token_ids, hidden_TD = inputs
    for start, end in pairwise(sorted({*ends, *_cuts(batch, rows_max)})):
        rows = slice(start, end)
        yield TensorInputs(
            cut_rows(batch, rows.start, rows.stop),
            None if token_ids is None else token_ids[rows],
            None if hidden_TD is None else hidden_TD[rows],
        )


def _cuts(batch: Batch, rows_max: int) -> list[int]:
    """Rows at which a batch is cut into steps of as many rows as there is room for, both its ends
    included."""
    if batch.batch_class is not DECODE:
        return [*range(0, batch.tokens, rows_max), batch.tokens]
    cuts, end = [0], 0
    for span in batch.spans:
        if end + span.tokens - cuts[-1] > rows_max:
            cuts.append(end)
        end += span.tokens
    return [*cuts, end]


def _joined(parts: Sequence[StepOutput]) -> StepOutput:
    """The output of a step that was computed in parts."""
    rows = [part.hidden_TD for part in parts if part.hidden_TD is not None]
    ids = [part.token_ids for part in parts if part.token_ids is not None]
    times_s = [part.computed_s for part in parts if part.computed_s is not None]
    return StepOutput(
        torch.cat(rows) if rows else None,
        tuple(token for part in parts for token in part.drawn),
        tuple(score for part in parts for score in part.scores),
        tuple(late for part in parts for late in part.late),
        tuple(token for part in ids for token in part) if ids else None,
        sum(times_s) if times_s else None,
        tuple(draft for part in parts for draft in part.drafts),
        tuple(draft for part in parts for draft in part.forced),
    )


def _cut(spans: tuple[Span, ...], rows: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    first, rest = list[Span](), list[Span]()
    for span in spans:
        taken = min(rows, span.tokens)
        rows -= taken
        middle = span.start + taken
        if taken in (0, span.tokens):
            (first if taken else rest).append(span)
            continue
        first.append(Span(span.request_id, span.start, middle, samples=False))
        rest.append(replace(span, start=middle))
    return tuple(first), tuple(rest)


def _tried(
    stage: Executor, inputs: TensorInputs, interrupt: Callable[[], None] | None
) -> StepOutput | None:
    """Result of a step; None when the device was full. The error's frames, which hold the step's
    tensors, are gone by then."""
    try:
        return stage.step(*inputs, interrupt)
    except (torch.OutOfMemoryError, MemoryError):
        return None
    except RuntimeError as error:
        if HOST_IS_FULL.search(str(error)) is None:
            raise
        return None


def _sentence(stage: Executor, rows: int, ending: str) -> str:
    where, limit = ("it", "vram_gb") if stage.card is not None else ("this PC", "memory_gb")
    return (
        f"{stage.device} ran out of memory in a step of {rows} rows, {ending}: other programs on "
        f"{where} may have grown; close them, or lend less of it ({limit}, --kv-tokens)"
    )
