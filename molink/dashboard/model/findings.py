"""What an operator should look at first: the few sentences at the top of the screen.

A slow PC is found by comparison. Its decode step is compared with what it was: the time that it
measured when it joined, or what was usual while we looked, whichever is less. Longer contexts and
more users slow every stage of a ring, so that what counts is how much slower a stage has become
than the others of its ring have. Without anything to compare with, the stage whose step takes far
longer than the others' is named as the one that sets the pace.

Pure, and the same for a recording as for a live cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from molink.dashboard.model.cluster import Link, Ring, Stage
from molink.dashboard.model.history import History, percentile, stage_key

__all__ = ["Finding", "Severity", "SlowStage", "findings", "slow_stages", "slowest_stage"]

SLOWER_FACTOR = 2.0
"""A stage that has become so much slower than the others of its ring is named; owners' programs
take half of a PC now and then, and a third is what an operator must find at once."""

PACE_FACTOR = 2.0
"""A stage whose step takes so many times as long as the ring's median sets the pace."""

STEPS_MIN = 20
"""A stage has computed before its times mean something; the first steps are of cold memory."""

LOST_S = 600.0
"""So long a node that was lost before our eyes is news."""

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
        *_of_service(history),
        *_of_losses(history),
        *_of_stages(history),
        *_of_links(history),
        *_of_nodes(history),
    ]
    return sorted(found, key=lambda one: one.severity)


def slow_stages(history: History) -> list[SlowStage]:
    """Stages that have become slower than the others of their rings."""
    return [slow for ring in history.state.rings for slow in _slow_in(history, ring)]


def slowest_stage(ring: Ring) -> Stage | None:
    """The stage that sets the pace of a ring; None: none takes much longer than the others."""
    timed = [stage for stage in ring.stages if stage.decode_step_s and stage.steps >= STEPS_MIN]
    if len(timed) < 2:
        return None
    slowest = max(timed, key=lambda stage: stage.decode_step_s or 0.0)
    others = [stage.decode_step_s or 0.0 for stage in timed if stage is not slowest]
    middle = percentile(others, 0.5) or 0.0
    return slowest if (slowest.decode_step_s or 0.0) >= PACE_FACTOR * middle else None


def _slow_in(history: History, ring: Ring) -> Iterator[SlowStage]:
    found = {}
    for index, stage in enumerate(ring.stages):
        usual_s = _usual_step_s(history, ring, index)
        if usual_s and stage.decode_step_s and stage.steps >= STEPS_MIN:
            found[stage.node] = SlowStage(ring.number, stage.node, stage.decode_step_s, usual_s)
    for node, slow in found.items():
        others = [one.times for name, one in found.items() if name != node]
        if slow.times >= SLOWER_FACTOR * max(1.0, percentile(others, 0.5) or 1.0):
            yield slow


def _usual_step_s(history: History, ring: Ring, index: int) -> float | None:
    """What its step took before, or should take as it was measured; the lesser of both."""
    stage = ring.stages[index]
    node = history.state.nodes_by_name.get(stage.node)
    usual = history.usual_step_s(stage_key(ring, index))
    told = None
    if node is not None and node.layer_step_s and stage.layers is not None:
        told = node.layer_step_s * (stage.layers[1] - stage.layers[0])
    return min((one for one in (usual, told) if one), default=None)


def _of_service(history: History) -> Iterator[Finding]:
    state = history.state
    if history.trouble:
        yield Finding(Severity.BAD, "", f"No answer from the coordinator: {history.trouble}")
    if state.intake_paused:
        yield Finding(Severity.WARNING, "", "The intake is paused: new requests are refused (p).")
    elif state.unready_reason:
        yield Finding(Severity.BAD, "", f"Requests are refused: {state.unready_reason}")
    for trouble in state.troubles:
        yield Finding(Severity.BAD, "", trouble)


def _of_losses(history: History) -> Iterator[Finding]:
    for node in history.state.nodes:
        lost_at_s = history.lost_at_s.get(node.id)
        if lost_at_s is not None and history.at_s - lost_at_s <= LOST_S:
            why = f": {node.reason}" if node.reason else "."
            ago = f"{max(0.0, history.at_s - lost_at_s):.0f} s ago"
            yield Finding(Severity.BAD, node.name, f"{node.name} was lost {ago}{why}")


def _of_stages(history: History) -> Iterator[Finding]:
    slow = {(one.ring, one.node): one for one in slow_stages(history)}
    for one in slow.values():
        sentence = (
            f"{one.node} is {one.times:.1f} times as slow as it was: a decode step takes "
            f"{1000 * one.step_s:.0f} ms instead of {1000 * one.usual_s:.0f}."
        )
        yield Finding(Severity.BAD, one.node, sentence)
    for ring in history.state.rings:
        slowest = slowest_stage(ring)
        if slowest is not None and (ring.number, slowest.node) not in slow:
            step_ms = 1000 * (slowest.decode_step_s or 0.0)
            sentence = (
                f"{slowest.node} sets the pace of ring {ring.number}: {step_ms:.0f} ms a step."
            )
            yield Finding(Severity.NOTE, slowest.node, sentence)


def _of_links(history: History) -> Iterator[Finding]:
    for ring in history.state.rings:
        for link in ring.links:
            yield from _of_link(history, link)


def _of_link(history: History, link: Link) -> Iterator[Finding]:
    name = f"The link {link.source} to {link.target}"
    if link.decode_wait_s >= DECODE_WAIT_S:
        sentence = f"{name} holds up decode: {link.decode_wait_s:.1f} s of it are queued."
        yield Finding(Severity.WARNING, link.source, sentence)
    elif (history.link_busy(link.ends) or 0.0) >= LINK_BUSY:
        yield Finding(Severity.NOTE, link.source, f"{name} is full.")


def _of_nodes(history: History) -> Iterator[Finding]:
    for node in history.state.nodes:
        if node.state in ("serving", "loading") and node.doubts:
            more = len(node.doubts) - 1
            ending = f" ({more} more in its details)" if more else ""
            sentence = f"{node.name}: {node.doubts[0]}{ending}"
            yield Finding(Severity.NOTE, node.name, sentence)
