"""Watch over a stage's steps: how long a card takes, and the rows that others compare."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.engine.model.row_sketches import RowSketches
from molink.engine.step.card_swapping import SwapWatch, refuse_swapping, watch_of
from molink.engine.step.extended_stage import Executor, parts_of
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.engine_protocol.values import Sketch
from molink_scheduler.batch import Batch


@dataclass(slots=True)
class WatchedSteps:
    """Watch over the steps of one stage, between `begins` and `ended` of each."""

    stage: Executor
    _swaps: SwapWatch | None = field(init=False)
    """Watch over the steps of a card; None: there is none."""
    _sketches: RowSketches | None = field(init=False, default=None)
    """Sketches of rows; None: nobody compares them."""

    def __post_init__(self) -> None:
        watches = [watch_of(part) for part in parts_of(self.stage)]
        self._swaps = _sum(watches)

    def extended(self, stage: Executor, added: StageExecutor) -> None:
        """Watch a stage of more layers from now on."""
        self.stage, self._swaps = stage, _sum([self._swaps, watch_of(added)])
        if self._sketches is not None:
            self._sketches = self._new_sketches()

    def begins(self, batch: Batch) -> None:
        """A step begins; one of decode may begin and end within one of prompts."""
        if self._sketches is not None:
            self._sketches.begins(batch)

    def ended(self, batch: Batch, output: StepOutput) -> None:
        """A step has ended. Raises DeviceMemoryError where the card swaps."""
        now = time.monotonic()
        if self._sketches is not None:
            self._sketches.ended(batch, now)
        if self._swaps is not None and output.computed_s is not None:
            refuse_swapping(self.stage, self._swaps, batch, output.computed_s, now)

    def done(self, *, begin: bool) -> Sequence[Sketch]:
        """Sketches of prompts that have ended, the newest first; they are made from the first call
        on that says `begin`, where this process has the layers."""
        are_here = all(part.model is not None for part in parts_of(self.stage))
        if begin and are_here and self._sketches is None:
            self._sketches = self._new_sketches()
        return () if self._sketches is None else self._sketches.done()

    def _new_sketches(self) -> RowSketches:
        models = [(part.model, part.layers) for part in parts_of(self.stage)]
        return RowSketches(models, self.stage.hidden_size, self.stage.device)


def _sum(watches: Sequence[SwapWatch | None]) -> SwapWatch | None:
    """The watch over steps of all together; None where one part has none."""
    known = [one for one in watches if one is not None]
    if len(known) < len(watches):
        return None
    return SwapWatch(sum(one.row_s for one in known), sum(one.weights_bytes for one in known))
