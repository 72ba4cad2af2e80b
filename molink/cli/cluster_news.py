"""What changes in a cluster, in lines for the operator: who came, what each PC does, what serves.

Made from the body of GET /cluster, which is all that an operator elsewhere sees as well.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from molink.cli.terminal import StatusLine
from molink.errors import ErrorGuard

if TYPE_CHECKING:
    from molink.serving.service import GenerationService

__all__ = ["ClusterNews", "cluster_now", "show_news"]

Report = Mapping[str, Any]

PERIOD_S = 1.0
"""Between two reports, for the person in front of it."""

IN_WORDS = {
    "joining": "measures what it can do",
    "loading": "loads {layers}",
    "serving": "serves {layers}",
    "standby": "stands by",
    "paused": "is paused",
    "draining": "hands over what it was doing",
    "lost": "is gone",
}
"""What a PC in each state does."""


async def show_news(
    service: "GenerationService", shown: StatusLine, *, after_start: bool = False
) -> None:
    """Show what changes, until cancelled; with `after_start` without what there is already."""
    news, guard = ClusterNews(), ErrorGuard("Showing what the cluster does")
    if after_start:
        news.update(service.cluster())
    while True:
        with guard:
            report = service.cluster()
            for line in news.update(report):
                shown.event(line)
            shown.status(cluster_now(report))
        await asyncio.sleep(PERIOD_S)


class ClusterNews:
    """Sentences for the differences between one report and the next."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        """Of each node, by id."""
        self._names: dict[str, str] = {}
        self._ready = False
        self._troubles: list[str] = []

    def update(self, report: Report) -> list[str]:
        """What is new since the last time."""
        nodes = {str(node["id"]): node for node in report.get("nodes", ())}
        lines = [self._removed(node_id) for node_id in self._shown.keys() - nodes.keys()]
        for node_id, node in nodes.items():
            lines += self._of_node(node_id, node)
        return lines + self._of_troubles(report) + self._of_rings(report)

    def _removed(self, node_id: str) -> str:
        del self._shown[node_id]
        return f"{self._names.pop(node_id)} is removed"

    def _of_node(self, node_id: str, node: Report) -> list[str]:
        sentence, before = _sentence(node), self._shown.get(node_id)
        if sentence == before or (before is None and node["state"] == "lost"):
            return []
        self._shown[node_id], self._names[node_id] = sentence, str(node["name"])
        came = "is here and " if before is None else ""
        return [f"{node['name']} {came}{sentence}"]

    def _of_troubles(self, report: Report) -> list[str]:
        """Of the relay, the broker, the disk."""
        own = (str(report.get("relay", {}).get("trouble", "")), *report.get("trouble", ()))
        before, self._troubles = self._troubles, [one for one in own if one]
        return [one for one in self._troubles if one not in before]

    def _of_rings(self, report: Report) -> list[str]:
        was_ready, self._ready = self._ready, report["unready_reason"] is None
        if self._ready == was_ready:
            return []
        if self._ready:
            return [f"requests are answered: {_rings(report)}"]
        return [f"requests are refused until there is another ring: {report['unready_reason']}"]


def cluster_now(report: Report) -> str:
    """How it is, in one sentence."""
    if report["unready_reason"] is not None:
        return str(report["unready_reason"])
    requests = [ring.get("requests", {}) for ring in report["rings"]]
    running = sum(one.get("running") or 0 for one in requests)
    waiting = sum(one.get("waiting") or 0 for one in requests)
    return f"Serving {_rings(report)}; requests: {running} running, {waiting} waiting."


def _rings(report: Report) -> str:
    rings = len(report["rings"])
    here = [node["state"] for node in report.get("nodes", ())]
    spare = here.count("standby")
    beside = f", {_count(spare, 'PC')} standing by" if spare else ""
    pcs = _count(here.count("serving"), "PC")
    return f"{report['model']} on {pcs} in {_count(rings, 'ring')}{beside}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _sentence(node: Report) -> str:
    """Without the progress of loading, which changes all the time."""
    layers = node.get("layers")
    held = f"layers {layers[0]} to {layers[1] - 1}" if layers else "nothing"
    sentence = IN_WORDS.get(str(node["state"]), str(node["state"])).format(layers=held)
    return f"{sentence}: {node['reason']}" if node.get("reason") else sentence
