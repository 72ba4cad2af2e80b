"""A running cluster: the hub, the manager of its rings and the service over them, put together.

The same for agents (`start`) and for the local nodes of `molink serve` (`local`). They differ in
the planner, in the ends of links and in what runs beside.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from molink.coordinator.members.hub import ControlHub
from molink.coordinator.planning.cluster_plan import Planner
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.requests.cluster_report import nodes_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.ledger import Accounting, Ledger
from molink.coordinator.rings.manager import ClusterManager, ManagerSettings
from molink.coordinator.rings.ring_builder import Assigner
from molink.coordinator.rings.ring_health import FailureBackoff
from molink.coordinator.rings.ring_supervisor import RingEndpoint, RingSupervisor
from molink.serving.service import ModelCard

__all__ = ["Cluster", "ClusterParts", "run_cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster that runs: what it serves with, and its rings."""

    service: ClusterService
    rings: Sequence[RingSupervisor]


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Parts in which one cluster differs from another."""

    card: ModelCard
    hub: ControlHub
    ledger: Ledger
    planner: Planner
    readiness: Readiness
    backoff: FailureBackoff
    new_endpoint: Callable[[int], RingEndpoint]
    """For a ring of this epoch."""
    settings: ManagerSettings
    status: Callable[[], dict[str, Any]]
    """What GET /cluster shows of what runs beside."""


def run_cluster(parts: ClusterParts, tasks: asyncio.TaskGroup) -> Cluster:
    """A cluster that runs in `tasks`, of which a failure is one that it cannot go on after."""
    hub, book = parts.hub, parts.hub.book

    def report(standbys: Mapping[str, str], devices: Mapping[str, str]) -> dict[str, Any]:
        nodes = nodes_report(list(book), standbys, parts.ledger.all(), devices)
        return {"nodes": nodes} | parts.status()

    service = ClusterService(parts.card, report)
    keys, next_revision = hub.registry.coordinator, hub.registry.next_revision
    manager = ClusterManager(
        settings=parts.settings,
        book=book,
        planner=parts.planner,
        service=service,
        assigner=Assigner(book, hub, keys.public_z85, next_revision),
        new_endpoint=parts.new_endpoint,
        readiness=parts.readiness,
        backoff=parts.backoff,
        tasks=tasks,
    )
    accounting = Accounting(parts.ledger, book, service)
    for work in (hub.run(parts.card.name), manager.run(), accounting.run()):
        tasks.create_task(work)
    return Cluster(service, manager.rings)
