"""Layers that a stage takes from a lost neighbour: loaded beside its own, and fed.

The engine's face asks here, whatever its stage consists of: a stage of one piece lacks nothing.
"""

from collections.abc import Callable, Iterable, Mapping

import torch

from molink.engine.device.elements import dtype_name, elements_of
from molink.engine.step.card_retry import TensorInputs, computed
from molink.engine.step.extended_stage import Executor, ExtendedExecutor, parts_of
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.engine_protocol.values import Fed, Held
from molink.errors import StageError
from molink_scheduler.batch import Batch
from molink_scheduler.resume import Resume
from molink_scheduler.stage.extension import Extension, HasRows
from molink_scheduler.stage.sent_rows import SentRows


def both(kept: Executor, added: StageExecutor, held: Held) -> ExtendedExecutor:
    """Both as one stage. Raises StageError where they cannot be."""
    if added.dtype != kept.dtype:
        numbers = f"{dtype_name(added.dtype)}, its stage in {dtype_name(kept.dtype)}"
        raise StageError(f"the layers that it was to take compute in {numbers}")
    if added.layers.start == kept.layers.stop:
        return ExtendedExecutor(kept, added, Extension(held.log, {}))
    if added.layers.stop == kept.layers.start:
        return ExtendedExecutor(added, kept, Extension(None, held.computed))
    layers = (added.layers.start, added.layers.stop)
    raise StageError(f"layers {layers} are not beside its own")


def fed(
    stage: Executor,
    batch: Batch,
    interrupt: Callable[[], None],
    make_room: Callable[[], None],
) -> Iterable[Fed]:
    """Rows of what taken layers lack of a batch's requests, computed while it is iterated."""
    if not isinstance(stage, ExtendedExecutor):
        return

    def compute(part: StageExecutor, piece: Batch, sent: SentRows) -> StepOutput:
        rows_TD = torch.frombuffer(bytearray(sent.rows), dtype=part.dtype)
        rows_TD = rows_TD.view(-1, part.hidden_size)
        inputs = TensorInputs(piece, sent.token_ids or None, rows_TD)
        return computed(part, inputs, interrupt, make_room)

    for piece, output in stage.feed(batch, compute):
        if output.hidden_TD is not None:
            yield Fed(piece, elements_of(output.hidden_TD), output.token_ids or ())


def goes_on(
    stage: Executor, resume: Resume, computed_tokens: Mapping[int, int], has_rows: HasRows
) -> tuple[tuple[int, ...], dict[int, int]]:
    """Requests that a stage cannot go on with in the ring's next epoch, and of the others those of
    which it keeps KV, and of how many tokens. Taken layers are fed, whatever the stage as a whole
    holds."""
    if isinstance(stage, ExtendedExecutor):
        missing = stage.begin_epoch(resume, computed_tokens, has_rows)
        keeps = dict(resume.without(missing).requests)
    else:
        missing = resume.missing(computed_tokens, has_rows)
        keeps = dict(resume.without(missing).keeps)
    windows = [part.windows.blocks for part in parts_of(stage)]
    gone = {
        n for n, tokens in keeps.items() if not all(one.can_go_on(n, tokens) for one in windows)
    }
    missing += tuple(gone)
    return missing, {n: tokens for n, tokens in keeps.items() if n not in gone}
