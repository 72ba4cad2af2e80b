"""Changes of a cluster for its ledger of events: who came, what each PC does, what serves.

Made from the cluster's report, which all that a node's state follows from has gone into: what a
node reports, what it is told, and what is known of its silence.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from molink.errors import ErrorGuard
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.nodes import NodeReport
from molink.serving.events import EventKind, EventLedger

PERIOD_S = 1.0
"""Between two looks, for the person in front of it."""

IN_WORDS = {
    "joining": "measures what it can do",
    "loading": "loads {layers}",
    "serving": "serves {layers}",
    "standby": "stands by",
    "paused": "is paused",
    "outdated": "is outdated",
    "draining": "hands over what it was doing",
    "lost": "is gone",
    "left": "has left the cluster",
}
"""What a PC in each state does."""


KINDS: Mapping[str, EventKind] = {"lost": "node_lost"}
"""Kinds of the events of states that are more than a change."""


@dataclass(slots=True)
class ClusterNews:
    """Reporter of the differences between one look at the cluster and the next."""

    report: Callable[[], ClusterReport]
    """Maker of the report on the cluster as it is now."""
    events: EventLedger
    watch: ClusterWatch = field(default_factory=ClusterWatch)
    """Watch that is told of each look."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that never go back: a finding holds for as long as it was seen, even where the PC's
    clock is set back."""
    now: str = ""
    """How it is, in one sentence, as of the latest look."""
    _shown: dict[str, str] = field(default_factory=dict)
    """What was said last of each node, by id."""
    _names: dict[str, str] = field(default_factory=dict)
    _refused_since: float | None = None
    """Since when requests are refused that were answered before."""
    _ready: bool = False
    _troubles: tuple[str, ...] = ()
    _watched: int = 0
    """Number of the last event of which the watch was told."""

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        guard = ErrorGuard("Telling what the cluster does")
        while True:
            with guard:
                self.look()
            await asyncio.sleep(PERIOD_S)

    def look(self) -> None:
        """Add to the ledger what is new since the last time."""
        report = self.report()
        nodes = {node.id: node for node in report.nodes}
        for node_id in self._shown.keys() - nodes.keys():
            self._removed(node_id)
        for node_id, node in nodes.items():
            self._note_node(node_id, node)
        self._note_troubles(report)
        self._note_rings(report)
        self.watch.note(self.clock(), report, events=self.events.after(self._watched))
        self._watched = self.events.last_seq
        self.now = cluster_now(report)

    def _removed(self, node_id: str) -> None:
        del self._shown[node_id]
        name = self._names.pop(node_id)
        self.events.add("node_removed", f"{name} belongs to this coordinator no more", node=name)

    def _note_node(self, node_id: str, node: NodeReport) -> None:
        sentence, before = _sentence(node), self._shown.get(node_id)
        if sentence == before or (before is None and node.state in ("lost", "left")):
            return
        name = node.name
        self._shown[node_id], self._names[node_id] = sentence, name
        if before is None:
            self.events.add("node_joined", f"{name} is here and {sentence}", node=name)
        else:
            kind = KINDS.get(node.state, "node_changed")
            self.events.add(kind, f"{name} {sentence}", node=name)

    def _note_troubles(self, report: ClusterReport) -> None:
        """Tell new troubles of the relay, the broker and the disk."""
        before, self._troubles = self._troubles, report.troubles
        for trouble in self._troubles:
            if trouble not in before:
                self.events.add("trouble", trouble)

    def _note_rings(self, report: ClusterReport) -> None:
        was_ready, self._ready = self._ready, report.unready_reason is None
        if self._ready and not was_ready:
            since, self._refused_since = self._refused_since, None
            again = f" again after {self.clock() - since:.0f} s" if since is not None else ""
            self.events.add("ready", f"requests are answered{again}: {_rings(report)}")
        elif was_ready and not self._ready:
            self._refused_since, why = self.clock(), report.unready_reason
            until = "" if report.intake_paused else " until there is another ring"
            self.events.add("unready", f"requests are refused{until}: {why}")


def cluster_now(report: ClusterReport) -> str:
    """How it is, in one sentence."""
    if report.unready_reason is not None:
        return report.unready_reason
    requests = f"{report.running} running, {report.waiting} waiting"
    return f"Serving {_rings(report)}; requests: {requests}."


def _rings(report: ClusterReport) -> str:
    here, rings = report.counts(), len(report.rings)
    standbys = here.get("standby", 0)
    beside = f", {_count(standbys, 'PC')} standing by" if standbys else ""
    pcs = _count(here.get("serving", 0), "PC")
    return f"{report.model} on {pcs} in {_count(rings, 'ring')}{beside}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _sentence(node: NodeReport) -> str:
    """Sentence on a node, without the progress of loading, which changes all the time."""
    layers = node.layers
    held = f"layers {layers[0]} to {layers[1] - 1}" if layers else "nothing"
    sentence = IN_WORDS.get(node.state, node.state).format(layers=held)
    return f"{sentence}: {node.reason}" if node.reason else sentence
