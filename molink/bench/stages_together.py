"""Measurement of how much longer a step takes while other stages of this PC compute as well.

    python -m molink.bench.stages_together MODEL      (one of the processes; started by the profile)

A profile's step times are of a stage that has the machine to itself. Where several stages run on
one PC they share cores and memory, so a step takes longer while others compute. Some processes load
the same middle layers; then one of them computes a prefill span again and again, then two at once,
then three, several times in turn. Prefill, because that is what stages are busy with when they
meet.
"""

import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from molink.errors import UserError

STAGES_AT_ONCE = 3
"""Stages measured together, as many as `molink serve` starts without --nodes."""

ROWS, BEFORE = 128, 256
"""A whole span in the middle of a prompt."""

ROUNDS, MEASURE_S = 5, 0.6
"""How often all counts are measured, and how long each: a dozen steps of the benchmark model. The
median of the rounds outlives a moment in which the PC did something else."""

READY = "ready"


def slowdown_together(model: str, layers: range, longest: int) -> list[float]:
    """Times as long as alone that a step takes with 1, 2, ... stages at once.

    `longest` is the model's length in tokens. Raises UserError when a process fails.
    """
    with ExitStack() as stack:
        stages = [
            stack.enter_context(_Stage.start(model, layers, longest)) for _ in range(STAGES_AT_ONCE)
        ]
        for stage in stages:
            stage.expect(READY)
        rounds = [_one_round(stages) for _ in range(ROUNDS)]
    return [max(1.0, statistics.median(slow)) for slow in zip(*rounds, strict=True)]


def _one_round(stages: "Sequence[_Stage]") -> list[float]:
    means = [_mean_s(stages[: count + 1]) for count in range(len(stages))]
    return [mean / means[0] for mean in means]


def _mean_s(stages: "Sequence[_Stage]") -> float:
    """Mean seconds of the steps of all these stages, computing at once."""
    for stage in stages:
        stage.go()
    return sum(float(stage.read()) for stage in stages) / len(stages)


class _Stage:
    """Process with the measured layers, which computes on request; a context that ends it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @classmethod
    def start(cls, model: str, layers: range, longest: int) -> "_Stage":
        """Start the process, which loads while this returns."""
        numbers = (str(number) for number in (layers.start, layers.stop, longest))
        return cls(
            subprocess.Popen(
                [sys.executable, "-m", "molink.bench.stages_together", model, *numbers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def __enter__(self) -> "_Stage":
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.communicate()

    def go(self) -> None:
        """Compute for a while."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read(self) -> str:
        """Read its next line. Raises UserError when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UserError("a stage to be measured ended early: what it said stands above.")
        return line.strip()

    def expect(self, word: str) -> None:
        """Wait until it prints this word."""
        found = self.read()
        assert found == word, f"expected {word}, got {found}"


def main(model: str, first: str, end: str, longest: str) -> None:
    """Load layers [first, end), then for every line of input print the mean of a while's steps."""
    from molink.engine.loading import load_stage
    from molink.engine.step.step_timing import StepTimer
    from molink.stage_protocol.messages import StageWork

    work = StageWork((int(first), int(end)), "auto", "auto", 2 * (ROWS + BEFORE))
    timer = StepTimer(load_stage(model, work, self_test=False))
    before = min(BEFORE, int(longest) // 2)
    rows = min(ROWS, int(longest) - before)
    timer.prefill_mean_s(rows, before, 0.0)
    print(READY, flush=True)
    for _ in sys.stdin:
        print(timer.prefill_mean_s(rows, before, MEASURE_S), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
