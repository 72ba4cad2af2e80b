"""Findings for an operator to look at first: the few sentences at the top of the screen.

A slow PC is found by comparison. Its decode step is compared with what was usual while we looked,
and with the time that it measured when it joined, for who begins to look when it is slow already.
Longer contexts and more users slow every stage of a ring, so that what counts is how much slower a
stage has become than the others of its ring have. Without anything to compare with, the stage whose
step takes far longer than the others' is named as the one that sets the pace.

Pure, and the same for a recording as for a live cluster.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from molink.dashboard.model.history import History, stage_key
from molink.report.cluster import RingLink, RingReport, StageReport

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

LOST_S = 600.0
"""Seconds for which a node that was lost before our eyes is news."""

DECODE_WAIT_S = 0.25
"""Decode that waits longer for its link than a token may take is felt by every user."""

LINK_BUSY = 0.95
"""A link so busy is full: what is sent besides waits."""


class Severity(IntEnum):
    """How bad a finding is; the worst come first."""

    BAD = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Sentence about one thing that stands out."""

    severity: Severity
    kind: str
    """Kind in one word: with the subject it tells findings apart though figures change."""
    subject: str
    """Name of a node, or empty."""
    sentence: str


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


def findings(history: History) -> list[Finding]:
    """All that stands out, the worst first."""
    found = [
        *_service_findings(history),
        *_loss_findings(history),
        *_stage_findings(history),
        *_links_findings(history),
        *_node_findings(history),
    ]
    return sorted(found, key=lambda one: one.severity)


def slow_stages(history: History) -> list[SlowStage]:
    """Stages that have become slower than the others of their rings."""
    return [slow for ring in history.state.rings for slow in _slow_in(history, ring)]


def slowest_stage(history: History, ring: RingReport) -> StageReport | None:
    """The stage that sets the pace of a ring; None: none takes much longer than the others."""
    steps = _steps_s(history, ring)
    if len(steps) < 2:
        return None
    slowest = max(steps, key=lambda index: steps[index])
    others = statistics.median(step_s for index, step_s in steps.items() if index != slowest)
    return ring.stages[slowest] if steps[slowest] >= PACE_FACTOR * others else None


def _steps_s(history: History, ring: RingReport) -> dict[int, float]:
    """Decode steps of the stages that have computed for a while, by their index."""
    steps = {
        index: history.recent_step_s(stage_key(ring, index))
        for index, stage in enumerate(ring.stages)
        if stage.steps >= STEPS_MIN
    }
    return {index: step_s for index, step_s in steps.items() if step_s is not None}


def _slow_in(history: History, ring: RingReport) -> Iterator[SlowStage]:
    steps = _steps_s(history, ring)
    if len(steps) < len(ring.stages):
        return
    usual = {index: history.usual_step_s(stage_key(ring, index)) for index in steps}
    # A PC whose load as a whole has risen cannot be told from a slow one without others beside it.
    alone = len(ring.stages) == 1
    told = {index: None if alone else _measured_step_s(history, ring, index) for index in steps}
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
        found[index] = one / max(1.0, statistics.median(others) if others else 1.0)
    return found


def _measured_step_s(history: History, ring: RingReport, index: int) -> float | None:
    """Seconds of a stage's step, as its node has measured it alone; None: it has not."""
    stage = ring.stages[index]
    node = history.state.nodes_by_name.get(stage.node)
    if node is None or not node.layer_step_s:
        return None
    return node.layer_step_s * (stage.layers[1] - stage.layers[0])


def _service_findings(history: History) -> Iterator[Finding]:
    state = history.state
    if history.trouble:
        yield Finding(Severity.BAD, "no answer", "", history.trouble)
    if state.intake_paused:
        yield Finding(
            Severity.WARNING, "intake", "", "The intake is paused: new requests are refused (p)."
        )
    elif state.unready_reason:
        yield Finding(Severity.BAD, "refused", "", f"Requests are refused: {state.unready_reason}")
    for trouble in state.troubles:
        yield Finding(Severity.BAD, trouble, "", trouble)


def _loss_findings(history: History) -> Iterator[Finding]:
    for node in history.state.nodes:
        lost_at_s = history.lost_at_s.get(node.id)
        if lost_at_s is not None and history.at_s - lost_at_s <= LOST_S:
            why = f": {node.reason}" if node.reason else "."
            ago = f"{max(0.0, history.at_s - lost_at_s):.0f} s ago"
            yield Finding(Severity.BAD, "lost", node.name, f"{node.name} was lost {ago}{why}")


def _stage_findings(history: History) -> Iterator[Finding]:
    slow = {(one.ring, one.node): one for one in slow_stages(history)}
    for one in slow.values():
        sentence = (
            f"{one.node} is {one.times:.1f} times as slow as it was: a decode step takes "
            f"{1000 * one.step_s:.0f} ms instead of {1000 * one.usual_s:.0f}."
        )
        yield Finding(Severity.BAD, "slow", one.node, sentence)
    for ring in history.state.rings:
        slowest = slowest_stage(history, ring)
        if slowest is not None and (ring.number, slowest.node) not in slow:
            sentence = (
                f"{slowest.node} sets the pace of ring {ring.number}: its steps take longest."
            )
            yield Finding(Severity.NOTE, "pace", slowest.node, sentence)


def _links_findings(history: History) -> Iterator[Finding]:
    for ring in history.state.rings:
        for link in ring.links:
            yield from _link_findings(history, link)


def _link_findings(history: History, link: RingLink) -> Iterator[Finding]:
    name = f"The link {link.source} to {link.target}"
    if link.decode_wait_s >= DECODE_WAIT_S:
        sentence = f"{name} holds up decode: {link.decode_wait_s:.1f} s of it are queued."
        yield Finding(Severity.WARNING, f"queue to {link.target}", link.source, sentence)
    elif (history.link_busy(link.ends) or 0.0) >= LINK_BUSY:
        yield Finding(Severity.NOTE, "full", link.source, f"{name} is full.")


def _node_findings(history: History) -> Iterator[Finding]:
    for node in history.state.nodes:
        if node.state == "outdated":
            sentence = f"{node.name} is outdated: {node.reason}"
            yield Finding(Severity.WARNING, "outdated", node.name, sentence)
        if node.state in ("serving", "loading") and node.doubts:
            more = len(node.doubts) - 1
            ending = f" ({more} more in its details)" if more else ""
            sentence = f"{node.name}: {node.doubts[0]}{ending}"
            yield Finding(Severity.NOTE, "doubt", node.name, sentence)
