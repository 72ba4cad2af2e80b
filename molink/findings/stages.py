"""Slow stages, and the stage that sets a ring's pace, found by comparison.

A stage's decode step is compared with what was usual while we looked, and with the time that its PC
measured when it joined, for who begins to look when it is slow already. Longer contexts and more
users slow every stage of a ring, so that what counts is how much slower a stage has become than the
others of its ring have. A ring of one PC has no others: of it nothing is said here, since more load
cannot be told from less speed. Without anything to compare with, the stage whose step takes far
longer than the others' is named as the one that sets the pace.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from molink.findings.series import Series, stage_key
from molink.report.cluster import RingReport, StageReport

SLOWER_FACTOR = 2.0
"""A stage that has become so much slower than the others of its ring is named; owners' programs
take half of a PC now and then, and a third is what an operator must find at once."""

SLOWER_THAN_TOLD_FACTOR = 2.5
"""Factor over what nodes told when they joined beyond which a stage is named: they told of layers
alone, without a long context, and without the ends of a ring, which do more."""

PACE_FACTOR = 2.0
"""A stage whose step takes so many times as long as the ring's median sets the pace."""

STEPS_MIN = 100
"""A stage has computed so many before its times mean something; the first are of cold memory."""


@dataclass(frozen=True, slots=True)
class SlowStage:
    """Stage that has become slower than the others of its ring."""

    ring: int
    node: str
    step_s: float
    usual_s: float

    @property
    def times(self) -> float:
        """How many times as long a step takes."""
        return self.step_s / self.usual_s


def slow_stages(series: Series) -> list[SlowStage]:
    """Stages that have become slower than the others of their rings."""
    return [slow for ring in series.state.rings for slow in _slow_in(series, ring)]


def slowest_stage(series: Series, ring: RingReport) -> StageReport | None:
    """The stage that sets the pace of a ring; None: none takes much longer than the others."""
    steps = _steps_s(series, ring)
    if len(steps) < 2:
        return None
    slowest = max(steps, key=lambda index: steps[index])
    others = statistics.median(step_s for index, step_s in steps.items() if index != slowest)
    return ring.stages[slowest] if steps[slowest] >= PACE_FACTOR * others else None


def _steps_s(series: Series, ring: RingReport) -> dict[int, float]:
    """Decode steps of the stages that have computed for a while, by their index."""
    steps = {
        index: series.recent_step_s(stage_key(ring, index))
        for index, stage in enumerate(ring.stages)
        if stage.steps >= STEPS_MIN
    }
    return {index: step_s for index, step_s in steps.items() if step_s is not None}


def _slow_in(series: Series, ring: RingReport) -> Iterator[SlowStage]:
    steps = _steps_s(series, ring)
    # A PC whose load has risen cannot be told from a slow one without others beside it.
    if len(steps) < len(ring.stages) or len(steps) < 2:
        return
    usual = {index: series.usual_step_s(stage_key(ring, index)) for index in steps}
    told = {index: _measured_step_s(series, ring, index) for index in steps}
    since_usual, since_told = _slower_than_others(steps, usual), _slower_than_others(steps, told)
    for index, step_s in steps.items():
        times = since_usual.get(index, 0.0) if since_usual.get(index, 0.0) >= SLOWER_FACTOR else 0.0
        if since_told.get(index, 0.0) >= SLOWER_THAN_TOLD_FACTOR:
            times = max(times, since_told[index])
        if times:
            yield SlowStage(ring.number, ring.stages[index].node, step_s, step_s / times)


def _slower_than_others(
    steps: Mapping[int, float], before: Mapping[int, float | None]
) -> dict[int, float]:
    """How many times as long each step takes as before, beyond what the others' steps do; nothing
    unless it is known of all of them."""
    times = {index: step_s / was for index, step_s in steps.items() if (was := before[index])}
    if len(times) < len(steps):
        return {}
    found = {}
    for index, one in times.items():
        others = [other for at, other in times.items() if at != index]
        found[index] = one / max(1.0, statistics.median(others))
    return found


def _measured_step_s(series: Series, ring: RingReport, index: int) -> float | None:
    """Seconds of a stage's step, as its node has measured it alone; None: it has not."""
    stage = ring.stages[index]
    node = series.state.nodes_by_name.get(stage.node)
    if node is None or not node.layer_step_s:
        return None
    return node.layer_step_s * (stage.layers[1] - stage.layers[0])
