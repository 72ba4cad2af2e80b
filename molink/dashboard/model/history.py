"""History of the dashboard: a watch that reads observations.

Pure: time is that of the observations, so that a recording gives the same as the live cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from molink.dashboard.model.observation import Observation
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.events import ClusterEvent
from molink.report.plain import Json, from_plain
from molink.report.requests import KeyReport, RequestReport

T = TypeVar("T")


@dataclass(slots=True)
class History(ClusterWatch):
    """Last minutes of one cluster, as they were observed."""

    keys: Mapping[str, KeyReport] = field(default_factory=dict)
    """Keys that open the API, by their ids, as far as this server tells."""

    def take(self, seen: Observation) -> None:
        """Take one look into account."""
        if seen.trouble:
            self.failed(seen.at_s, seen.trouble)
            return
        self.keys = {one.id: one for one in _read(KeyReport, seen.keys) or ()}
        self.note(
            seen.at_s,
            from_plain(ClusterReport, seen.cluster),
            _read(RequestReport, seen.requests),
            _read(ClusterEvent, seen.events),
        )


def _read(of: type[T], listed: tuple[Json, ...] | None) -> list[T] | None:
    return None if listed is None else [from_plain(of, one) for one in listed]
