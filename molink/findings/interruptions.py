"""Findings on rings whose answers do not come: a stage is lost or silent, or nobody knows why.

A loss is told from its event until the ring goes on, and then for a minute how long it took. A
stage is silent when a neighbour and the coordinator both hear nothing of it. A ring stands when
answers are under way and no token has come for many rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from molink.findings.finding import BAD, NOTE, Finding
from molink.findings.series import Series
from molink.report.cluster import RingReport
from molink.report.events import ClusterEvent

RESUMED_S = 60.0
"""Seconds for which it is told that a ring has gone on."""

STANDS_MIN_S = 3.0
"""Least time without a token after which a ring stands; home links stall for less, mostly."""

STANDS_ROUNDS = 10.0
"""Rounds without a token after which a ring stands: its own pace is what it is compared with."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """Losses of stages of one ring that it goes on after together."""

    ring: int
    nodes: tuple[str, ...]
    """Names of the nodes whose stages were lost."""
    began_unix_s: float
    ended_unix_s: float | None = None
    """When the ring went on; None: it has not."""


def interruption_findings(series: Series) -> Iterator[Finding]:
    """What stops answers now, and what has until a minute ago."""
    latest = {one.ring: one for one in _interruptions(series)}
    for one in latest.values():
        if one.ended_unix_s is not None:
            yield from _resumed(series, one)
    for ring in series.state.rings:
        loss = latest.get(ring.number)
        if loss is not None and loss.ended_unix_s is None:
            yield _lost(series, ring, loss)
        else:
            yield from _silent(ring)


def _interruptions(series: Series) -> Iterator[Interruption]:
    """Interruptions of all rings, by the coordinator's events; the latest of a ring comes last."""
    open_: dict[int, Interruption] = {}
    for event in series.events:
        if event.ring is None:
            continue
        if event.kind == "stage_lost":
            open_[event.ring] = _with(open_.get(event.ring), event)
        elif event.kind in ("ring_resumed", "ring_ended"):
            found = open_.pop(event.ring, None)
            if found is not None and event.kind == "ring_resumed":
                yield Interruption(found.ring, found.nodes, found.began_unix_s, event.unix_s)
    yield from open_.values()


def _with(found: Interruption | None, event: ClusterEvent) -> Interruption:
    """The interruption that a loss begins, or adds to."""
    assert event.ring is not None, "it is a ring's"
    before = found or Interruption(event.ring, (), event.unix_s)
    nodes = tuple(dict.fromkeys((*before.nodes, event.node)))
    return Interruption(event.ring, nodes, before.began_unix_s)


def _resumed(series: Series, one: Interruption) -> Iterator[Finding]:
    assert one.ended_unix_s is not None, "it has gone on"
    if 0 <= series.now_unix_s - one.ended_unix_s <= RESUMED_S:
        took = f"{one.ended_unix_s - one.began_unix_s:.1f} s"
        sentence = f"Ring {one.ring} went on after {took}: it had lost {_named(one.nodes)}."
        yield Finding(NOTE, "resumed", one.nodes[0], sentence, f"ring {one.ring}")


def _lost(series: Series, ring: RingReport, loss: Interruption) -> Finding:
    of_ring = [one for one in series.state.nodes if one.ring == ring.number]
    loading = [one.name for one in of_ring if one.state == "loading"]
    if len(loss.nodes) == 1:
        what = f"{loss.nodes[0]}'s stage is lost"
    else:
        what = f"The stages of {_named(loss.nodes)} are lost"
    again = ""
    if loading:
        how = "it again" if loading == list(loss.nodes) else "its layers"
        again = f"; {_named(loading)} load{'s' * (len(loading) == 1)} {how}"
    waiting = ring.requests.running + ring.requests.waiting
    answers = f", {waiting} answer{'s' * (waiting != 1)} wait{'s' * (waiting == 1)}"
    sentence = f"{what}{again}{answers}."
    return Finding(BAD, "stage_lost", loss.nodes[0], sentence, f"ring {ring.number}")


def _silent(ring: RingReport) -> Iterator[Finding]:
    silent = [stage for stage in ring.stages if stage.silent_s > 0]
    for stage in silent:
        said = f"{stage.node} has said nothing for {stage.silent_s:.0f} s"
        sentence = f"{said}, and ring {ring.number} waits for it."
        yield Finding(BAD, "stage_silent", stage.node, sentence, f"ring {ring.number}")
    quiet_s = ring.quiet_s or 0.0
    if not silent and quiet_s >= max(STANDS_MIN_S, STANDS_ROUNDS * (ring.round_s or 0.0)):
        running = ring.requests.running
        answers = f"{running} answer{'s' * (running != 1)}"
        sentence = f"Ring {ring.number} stands: no token for {quiet_s:.0f} s, {answers} under way."
        yield Finding(BAD, "ring_stands", "", sentence, f"ring {ring.number}")


def _named(names: tuple[str, ...] | list[str]) -> str:
    """Names as a sentence has them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
