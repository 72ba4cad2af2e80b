"""What a process with a stage's weights does: passes of the model, with attention elsewhere.

It keeps nothing between two passes, so it may end at any time.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from molink.compute.frames import call_frame, read_pass, read_rows
from molink.engine.device.elements import dtype_name, elements_of, tensor_of
from molink.engine.layers.attention_function import AttentionStep
from molink.engine.layers.staged_mixer import RecurrentStep
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine.memory.state_pool import StatePool
from molink.engine.memory.step_plan import StepPlan
from molink.engine.step.forward import Forward
from molink.engine.step.stage import StageExecutor
from molink.engine_protocol.computing import LayerCall, ModelPass
from molink.errors import FrameError
from molink.lender.protocol import Frame, Kind, LenderLink, Receiver, send
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

log = logging.getLogger("molink.compute")

CPU = torch.device("cpu")

REASON_CHARACTERS = 400


@dataclass(slots=True)
class ComputeLoop:
    """Passes of one stage's model, and the link by which they are asked for."""

    link: LenderLink
    stage: StageExecutor
    _forward: Forward = field(init=False)
    _receiver: Receiver = field(init=False)
    _unused: KvPool = field(init=False)
    """Pool of a stage whose KV lies elsewhere."""

    def __post_init__(self) -> None:
        stage = self.stage
        of = (stage.model, stage.part, stage.description, stage.device, stage.dtype)
        self._forward, self._receiver = Forward(*of), Receiver(self.link)
        self._unused = KvPool(BLOCK_TOKENS)

    def run(self) -> None:
        """Serve until the stage closes the link."""
        with torch.inference_mode(), suppress(ConnectionError):
            while True:
                self._take(*self._receiver.receive())

    def attend(
        self,
        layer_index: int,
        rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        window: int | None,
        variant: AttentionVariant,
    ) -> torch.Tensor:
        """Have the stage keep a layer's keys and values, and attend; see `KvApart`. Passes that
        interrupt this one are made meanwhile."""
        q, k, v = map(elements_of, rows)
        sinks = variant.sinks_H
        sinks_H = None if sinks is None else elements_of(sinks.to(self.stage.dtype))
        numbers = (variant.scale, variant.softcap, window)
        send(self.link, *call_frame(LayerCall(layer_index, q, k, v, sinks_H, *numbers)))
        while True:
            frame, content = self._receiver.receive()
            if frame.kind == Kind.ATTENDED:
                shape = (*q.shape[:2], v.shape[-1])
                return tensor_of(read_rows(content, dtype_name(self.stage.dtype), shape))
            self._take(frame, content)

    def _take(self, frame: Frame, content: memoryview) -> None:
        if frame.kind != Kind.RUN:
            raise FrameError(f"a stage sends no {frame.kind.name}")
        width = self.stage.hidden_size
        given = read_pass(content, dtype_name(self.stage.dtype), width)
        try:
            out_TX = elements_of(self._rows(given))
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("A pass cannot be made")
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
            send(self.link, Frame(Kind.REFUSED), [reason.encode()])
            raise
        send(self.link, Frame(Kind.COMPUTED, number=len(out_TX)), [out_TX.data])

    def _rows(self, given: ModelPass) -> torch.Tensor:
        positions_T = torch.tensor(given.positions, dtype=torch.long)
        ids_T = torch.tensor(given.token_ids, dtype=torch.long)
        rows_TD = None if given.rows_TD is None else tensor_of(given.rows_TD)
        keep = None if given.keep is None else torch.tensor(given.keep, dtype=torch.long)
        plan = StepPlan(positions_T, positions_T, _unkept(given))
        recurrence = RecurrentStep([], StatePool(1), torch.zeros(0, dtype=torch.long), 1)
        attention = AttentionStep(plan, self._unused, layers_called=recurrence.layers_called)
        attention.apart = self
        return self._forward.rows(ids_T, rows_TD, attention, recurrence, keep)


def _unkept(given: ModelPass) -> RaggedBatch:
    """Spans that say which rows are alone, over no KV of any use."""
    rows = len(given.positions)
    size = rows if given.has_pieces else 1
    blocks = (0,) * blocks_for(size)
    spans = [RaggedSpan(at, size, 0, size, blocks) for at in range(0, rows, size)]
    return RaggedBatch.of(spans, CPU)
