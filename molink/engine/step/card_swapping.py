"""Has a card's driver moved memory of ours to the PC's, so that decode steps take several times as
long?

Under Windows and WSL a card that other programs fill does not fail: its driver swaps, without a
word, and every step waits for pages. Only time tells. So what a decode step takes is measured when
the stage loads, and steps are compared with it while it serves: by what they read, since one over
long contexts takes longer for good reasons. Steps that are slow although there is room have another
reason (heat, a game's work on the card), and nothing is done about it here.

`SwapWatch` is pure: no clock, no card.
"""

import statistics
from dataclasses import dataclass

from molink.engine.step.extended_stage import Executor
from molink.engine.step.stage import StageExecutor
from molink.engine.step.warm_up import run_span
from molink.errors import DeviceMemoryError
from molink.hardware.card_memory import kept_free_bytes
from molink_scheduler.batch import DECODE, Batch

LOAD_STEPS = 5
"""Steps that are timed when a stage has loaded; the median counts."""

SLOWER_MIN = 4.0
"""Multiple of the expected time: swapping costs tenfold and more, a card's lower clocks twofold."""

STEPS_MIN, SECONDS_MIN = 8, 5.0
"""Least steps in a row, and their seconds: a program that starts takes a card for a second."""

FREE_SHARE_MAX = 0.5
"""Share of what is always left free of a card: with more free than that it is not full."""


@dataclass(slots=True)
class SwapWatch:
    """Decode steps of one stage, beside what one of a single row took when the stage had loaded."""

    row_s: float
    weights_bytes: int
    _slow_since: float | None = None
    _slow_steps: int = 0

    def expected_s(self, kv_bytes: int) -> float:
        """Time of a step that reads the weights and so much KV: decode is bound by reading."""
        return self.row_s * (1 + kv_bytes / max(1, self.weights_bytes))

    def is_slow(self, step_s: float, kv_bytes: int, now: float) -> bool:
        """Whether this decode step, which ended now, and those before it were too slow for too
        long."""
        if step_s < SLOWER_MIN * self.expected_s(kv_bytes):
            self._slow_since, self._slow_steps = None, 0
            return False
        if self._slow_since is None:
            self._slow_since = now - step_s
        self._slow_steps += 1
        return self._slow_steps >= STEPS_MIN and now - self._slow_since >= SECONDS_MIN


def watch_of(stage: StageExecutor) -> SwapWatch | None:
    """The watch over a stage that has loaded; None where no card tells its steps' times."""
    if stage.card is None:
        return None
    times_s = [run_span(stage, 0, 1).computed_s for _ in range(LOAD_STEPS)]
    known_s = [time_s for time_s in times_s if time_s is not None]
    return SwapWatch(statistics.median(known_s), stage.weights_bytes) if known_s else None


def refuse_swapping(
    stage: Executor, watch: SwapWatch, batch: Batch, step_s: float, now: float
) -> None:
    """Raise DeviceMemoryError where decode has become slow and the card is full; its agent then
    lends less of it."""
    if batch.batch_class is not DECODE or stage.card is None:
        return
    kv_bytes = sum(span.end for span in batch.spans) * stage.kv_token_bytes
    if not watch.is_slow(step_s, kv_bytes, now):
        return
    if stage.card.free_bytes < FREE_SHARE_MAX * kept_free_bytes(stage.card.total_bytes):
        times = step_s / watch.expected_s(kv_bytes)
        raise DeviceMemoryError(
            f"{stage.device} is full and its steps take {times:.0f} times as long as at the start: "
            "its driver has moved memory to the PC's; close other programs on it, or lend less of "
            "it (vram_gb, --kv-tokens)"
        )
