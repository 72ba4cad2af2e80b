"""A stage that takes two seconds for each decode step, moves on meanwhile, and says 2 ms."""

import time
from dataclasses import replace

from molink.stage.health.health_reports import HealthReports
from molink.stage.loop import StageLoop
from molink.stage.stage_process import main
from molink.stage_protocol.health import StageHealth
from molink_scheduler.batch import DECODE
from molink_scheduler.events import RunBatch

STEP_S, SAID_S = 2.0, 0.002
PIECE_S = 0.1

_compute, _health = StageLoop._compute, HealthReports._health


def compute(loop: StageLoop, run: RunBatch) -> None:
    """As the product's, after a wait."""
    if run.batch.batch_class is DECODE:
        until = time.monotonic() + STEP_S
        while time.monotonic() < until:
            time.sleep(PIECE_S)
            loop.reports.moved()
    _compute(loop, run)


def health(reports: HealthReports, now: float) -> StageHealth:
    """As the product's, of a step that took no time."""
    true = _health(reports, now)
    return replace(true, decode_step_s=SAID_S if true.decode_step_s else true.decode_step_s)


if __name__ == "__main__":
    StageLoop._compute = compute  # type: ignore[method-assign, assignment]
    HealthReports._health = health  # type: ignore[method-assign, assignment]
    main()
