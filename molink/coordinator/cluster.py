"""A running cluster: the hub, the manager of its rings and the service over them, put together.

The same for agents (`start`) and for the local nodes of `molink serve` (`local`). They differ in
the planner, in the ends of links and in what runs beside.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from molink.config.groups import ModelSettings
from molink.control.registry.registry import Registry
from molink.coordinator.admin import ClusterAdmin
from molink.coordinator.audits.auditor import Auditor, AuditSettings
from molink.coordinator.cell.lending import CellLending, NoLenders
from molink.coordinator.cell.orders import CellOrders
from molink.coordinator.nodes.hub import ControlHub
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.cluster_plan import Planner
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.reports.cluster_news import ClusterNews
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.reports.ledger import Accounting, Ledger
from molink.coordinator.reports.node_reports import contribution_report, nodes_report
from molink.coordinator.reports.thanks import PeopleHelped
from molink.coordinator.requests.audit_queue import AuditQueue
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.intake import Intake
from molink.coordinator.upkeep.assigner import Assigner
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.manager import ClusterManager
from molink.coordinator.upkeep.ring_building import RingEndpoint
from molink.coordinator.upkeep.ring_supervisor import RingSupervisor
from molink.coordinator.upkeep.settings import ManagerSettings
from molink.coordinator.upkeep.take_over import RingKeeper
from molink.report.cluster import ClusterReport
from molink.report.nodes import ContributionReport
from molink.serving.answers.live_state import LiveState
from molink.serving.model_card import ModelCard
from molink.serving.served_model import ServedModel, read_served_model
from molink.serving.service import GenerationRequest


@dataclass(frozen=True, slots=True)
class Stores:
    """Files that a coordinator keeps in its folder."""

    registry: Registry
    ledger: Ledger
    live: LiveState


@contextmanager
def open_stores(folder: Path, model_name: str) -> Iterator[Stores]:
    """The stores of a folder, until the block ends. Raises UserError for what cannot be read."""
    with (
        closing(Registry.open(folder)) as registry,
        closing(Ledger.open(folder)) as ledger,
        closing(LiveState.open(folder, model_name, time.time())) as live,
    ):
        yield Stores(registry, ledger, live)


def model_of(served: ModelSettings) -> ServedModel:
    """The model that is to be served. Raises UserError for one that cannot be."""
    return read_served_model(
        served.model, served.model_len_max, served.served_model_names, served.generation_config
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster that runs: what it serves with, its rings, and what changes in it."""

    service: ClusterService
    rings: Sequence[RingSupervisor]
    admin: ClusterAdmin
    news: ClusterNews
    live: LiveState
    """What a later coordinator goes on with."""
    given_by: Callable[[str], ContributionReport]
    """What the PC with this id has given, with all devices."""
    thanks: PeopleHelped
    cell: CellOrders | None = None
    """Orders about cells; None: all nodes are here."""


def run_cluster(
    tasks: asyncio.TaskGroup,
    *,
    card: ModelCard,
    hub: ControlHub,
    ledger: Ledger,
    planner: Planner,
    readiness: Readiness,
    blame: Blame,
    new_endpoint: Callable[[int], RingEndpoint],
    settings: ManagerSettings,
    intake: Intake,
    complete: Callable[[ClusterReport], ClusterReport],
    audits: AuditSettings,
    live: LiveState,
    ring_settings: str = "",
    lending: CellLending | None = None,
) -> Cluster:
    """Start the loops of a cluster in `tasks`. The cluster ends when one of them fails.

    `new_endpoint` is called with the epoch of each ring; `intake` says which requests are taken,
    and by which ring; `complete` adds to a report what only its starter knows. Rings in `live` that
    were loaded with the same `ring_settings` are taken over. `lending`: among PCs of a LAN; None:
    all nodes are here.
    """

    def report(service: ClusterService) -> ClusterReport:
        troubles = [hub.trouble, accounting.trouble, live.trouble, auditor.trouble, planner.trouble]
        troubles += [lending.rings.trouble] if lending is not None else []
        nodes = nodes_report(list(hub.book), service.standbys, ledger.all(), service.devices)
        base, cells = service_report(service, nodes, troubles), cell.report() if cell else None
        free = free_bytes(live.path.parent)
        base = replace(base, audits=auditor.report(), cell=cells, disk_free_bytes=free)
        return complete(base)

    service = ClusterService(card, report, intake, audits=AuditQueue(audits.share))
    cell = CellOrders(lending, service.events) if lending is not None else None
    admin = ClusterAdmin(hub.book, hub.registry, service)
    auditor = Auditor(service, admin.quarantine, audits.evidence, audits.has_experts)
    accounting = Accounting(ledger, hub.book, service)
    keys, next_epoch = hub.registry.coordinator, hub.registry.next_revision
    assigner = Assigner(hub.book, hub, keys.public_z85, next_epoch)
    unfinished = live.unfinished()
    keeper = RingKeeper.of(live, ring_settings, unfinished)
    ways = assigner, new_endpoint, readiness, tasks, blame, keeper, lending or NoLenders()
    manager = ClusterManager(settings, hub.book, planner, service, *ways)
    news = ClusterNews(service.cluster, service.events, service.watch)
    loops = [hub.run(card.name), manager.run(), accounting.run(), news.run(), auditor.run()]
    loops += [lending.run()] if lending is not None else []
    for loop in (*map(partial(_finish_earlier, service, keeper, live), unfinished), *loops):
        tasks.create_task(loop)
    given_by = partial(given_by_pc, hub.registry, ledger)
    thanks = _thanks(hub.book, ledger, service)
    return Cluster(service, manager.rings, admin, news, live, given_by, thanks, cell)


async def _finish_earlier(
    service: ClusterService, keeper: RingKeeper, live: LiveState, request: GenerationRequest
) -> None:
    """Go on with a request of an earlier coordinator, to its end or until its client ends it."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    live.going_on(request, task)
    try:
        await service.finish_earlier(request)
    finally:
        keeper.ended(request)


def _thanks(book: NodeBook, ledger: Ledger, service: ClusterService) -> PeopleHelped:
    def given() -> dict[str, int]:
        sums = ledger.all()
        return {node.name: sums[node.node_id].token_layers for node in book if node.node_id in sums}

    helped = PeopleHelped(lambda: {node.name: node.pc for node in book}, given)
    service.request_log.watch(helped.ended)
    return helped


def free_bytes(folder: Path) -> int | None:
    """Room on the disk of a folder; None: it cannot be had now."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def given_by_pc(registry: Registry, ledger: Ledger, pc: str) -> ContributionReport:
    """What a PC has given with all its devices, those too that have not been heard since we
    started."""
    return contribution_report(ledger.of(registry.devices_of(pc)))
