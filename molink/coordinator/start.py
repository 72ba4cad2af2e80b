"""From `molink up`'s settings to a running coordinator of agents.

What it runs: the registry and the ledger (SQLite), a broker, a relay, the node book with the hub
that fills it, and the manager of rings. All of it ends when the block is left, in the opposite
order.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.description import ModelDescription, describe
from molink.config.data_lock import only_one
from molink.config.up_settings import UpSettings
from molink.control.broker.broker import Broker, TlsFiles, open_broker
from molink.control.messages.payloads import WeightsSource
from molink.control.registry.registry import Registry
from molink.coordinator.members.hub import ControlHub
from molink.coordinator.members.joining import JoinService, let_in
from molink.coordinator.members.ledger import Ledger
from molink.coordinator.members.node_book import NodeBook
from molink.coordinator.nodes_report import nodes_report
from molink.coordinator.planning.model_planner import ModelPlanner
from molink.coordinator.planning.plan_process import plan_beside
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.rings.accounting import Accounting
from molink.coordinator.rings.agent_ring import JoinTerms
from molink.coordinator.rings.assigner import Assigner
from molink.coordinator.rings.coordinator_endpoint import CoordinatorEndpoint, EndpointTerms
from molink.coordinator.rings.manager import ClusterManager, ManagerSettings
from molink.coordinator.services.own_services import OwnServices
from molink.serving.model_card import load_tokenizer, model_card
from molink.serving.served_model import checked_model_len, model_path, public_name
from molink.serving.service import ModelCard
from molink_scheduler.placement import Plan, Shortage

__all__ = ["Cluster", "start_cluster"]

LOCK_FILE = "coordinator.lock"


@dataclass(slots=True)
class Cluster:
    """What serves agents and users."""

    service: ClusterService
    desk: JoinService
    registry: Registry
    checkpoint: Checkpoint
    manager: ClusterManager
    plan: Callable[[str | None], Awaitable[Plan | Shortage]]
    """What would be best with the nodes that are here now, split as told (None: as we do)."""
    running: "asyncio.Task[None]"
    """Ends only by an error: the broker refuses us, or a bug."""


@dataclass(frozen=True, slots=True)
class _Model:
    """What is served."""

    path: str
    name: str
    checkpoint: Checkpoint
    description: ModelDescription
    card: ModelCard


@asynccontextmanager
async def start_cluster(settings: UpSettings, api_port: int) -> AsyncIterator[Cluster]:
    """A coordinator whose rings come and go with its nodes; `api_port` is where agents find it.

    Raises UserError for what the operator can mend, ControlError when the broker cannot be had.
    """
    model = await asyncio.to_thread(_model, settings)
    planner = await asyncio.to_thread(ModelPlanner.of, model.path, model.description, settings)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_one("A coordinator", settings.data_dir / LOCK_FILE))
        registry = Registry.open(settings.data_dir)
        stack.callback(registry.close)
        ledger = Ledger.open(settings.data_dir)
        stack.callback(ledger.close)
        broker = await _started_broker(settings, registry, stack)
        own = await OwnServices.start(settings, registry, model.name, model.checkpoint.config())
        stack.push_async_callback(own.stop)
        hub = await stack.enter_async_context(ControlHub.open(broker, registry, NodeBook()))
        hub.services_of, hub.probing, hub.removed = own.of_node, own.probing, own.forbid
        own.peer.saw = lambda node_id, rate: hub.book.saw(node_id, rate * 8 / 1e6)
        url = f"http://{settings.public_host}:{api_port}"
        registry.url = url
        own.model = planner.facts.model_size(model.name)
        service, manager = _manager(settings, model, hub, own, planner, url)
        accounting = Accounting(ledger, hub.book, service)
        service.report = lambda: {
            "nodes": nodes_report(list(hub.book), manager.plan, ledger.all()),
            "relay": {"address": own.relay.address, "trouble": own.relay.trouble},
        }
        running = asyncio.create_task(_run(hub, manager, accounting, model.name))
        stack.push_async_callback(_cancel, running)
        yield Cluster(
            service,
            JoinService(registry, broker, _told_host(settings, broker), own.model),
            registry,
            model.checkpoint,
            manager,
            lambda split: plan_beside(
                planner.splitting(split).question([node for node in hub.book if node.may_serve])
            ),
            running,
        )


def _model(settings: UpSettings) -> _Model:
    """Takes seconds: done before the broker is asked to hear from us every few."""
    path = model_path(settings.model)
    name = public_name(path)
    checkpoint = open_checkpoint(path)
    description = describe(checkpoint)
    length = checked_model_len(settings.model_len_max, description)
    card = model_card(name, description, length, load_tokenizer(description))
    return _Model(path, name, checkpoint, description, card)


async def _started_broker(
    settings: UpSettings, registry: Registry, stack: AsyncExitStack
) -> Broker:
    """With every member let in."""
    tls = None
    if settings.tls_cert:
        tls = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
    broker = open_broker(
        settings.broker, settings.host, settings.broker_port, settings.data_dir, tls
    )
    await let_in(broker, registry)
    await broker.start()
    stack.push_async_callback(broker.stop)
    return broker


def _told_host(settings: UpSettings, broker: Broker) -> str:
    """Of somebody else's broker its own host; ours is where the coordinator is."""
    return broker.address.host if "://" in (settings.broker or "") else settings.public_host


def _manager(
    settings: UpSettings,
    model: _Model,
    hub: ControlHub,
    own: OwnServices,
    planner: ModelPlanner,
    url: str,
) -> tuple[ClusterService, ClusterManager]:
    service = ClusterService(model.card)
    weights_url = "" if model.checkpoint.hub_id else f"{url}/weights"
    assigner = Assigner(
        hub.book,
        WeightsSource(model=model.checkpoint.hub_id or model.name, url=weights_url),
        settings.dtype,
        hub.tell,
        hub.allow_links,
        hub.registry.coordinator.public_z85,
        hub.registry.next_revision,
    )
    terms = _door_terms(settings, hub, own, service)
    manager = ClusterManager(
        ManagerSettings(settings.min_nodes, settings.codec),
        hub.book,
        planner,
        service,
        assigner,
        lambda epoch: CoordinatorEndpoint(terms, epoch),
        Readiness(own.probing.asked_of),
    )
    hub.noticed = manager.noticed
    return service, manager


def _door_terms(
    settings: UpSettings, hub: ControlHub, own: OwnServices, service: ClusterService
) -> EndpointTerms:
    keys = hub.registry.coordinator
    join = JoinTerms(
        micro_batch_count=settings.micro_batch_count,
        span_tokens=settings.span_tokens,
        policy=settings.policy,
        coordinator_key=keys.public_z85,
        coordinator_addresses=(),
        coordinator_port_name="",
        relay=own.relay.address,
    )
    return EndpointTerms(
        keys=keys,
        card=service.card,
        join=join,
        listen_host=settings.host,
        public_host=settings.public_host,
        relay=own.relay,
    )


async def _run(
    hub: ControlHub, manager: ClusterManager, accounting: Accounting, model: str
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(hub.run(model))
            group.create_task(manager.run())
            group.create_task(accounting.run(manager.lives))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
