"""From `molink up`'s settings to a running coordinator of agents.

What runs beside the cluster: the registry and the ledger (SQLite), a broker, a relay. All of it
ends when the block is left, in the opposite order.
"""

import asyncio
import asyncio.sslproto
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.config.data_dir import only_one
from molink.config.settings import UpSettings
from molink.control.addresses import TlsFiles
from molink.control.broker.broker import Broker, open_broker
from molink.control.certificate import operators_certificate, own_certificate
from molink.control.identity import KeyPair
from molink.control.messages.payloads import WeightsSource
from molink.control.registry.registry import Registry
from molink.control.versions import own_protocols
from molink.coordinator.audits.auditor import AuditSettings
from molink.coordinator.cell.lending import CellLending
from molink.coordinator.cell.pairs import ConfirmedPairs
from molink.coordinator.cell.ring_pairs import RingPairs
from molink.coordinator.cluster import Cluster, Stores, model_of, open_stores, run_cluster
from molink.coordinator.nodes.access import Suspensions
from molink.coordinator.nodes.hub import ControlHub, allow_members
from molink.coordinator.nodes.letting_go import LettingGo
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.catalogue_plans import cluster_catalogue
from molink.coordinator.planning.model_planner import ModelPlanner
from molink.coordinator.planning.plan_process import plan_beside
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.reports.expiries import certificates_shown, invites_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.intake import Intake
from molink.coordinator.requests.prefill_rings import RingRoles, check_roles
from molink.coordinator.services import CoordinatorRelay, JoinService, NodeServices
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.coordinator_endpoint import CoordinatorEndpoint
from molink.coordinator.upkeep.recovery_files import RecoveryFiles
from molink.coordinator.upkeep.settings import NOBODY_HANDED, NOBODY_JOINED, ManagerSettings
from molink.json_object import JsonObject
from molink.report.cluster import CertificateReport, ClusterReport, RelayReport
from molink.serving.drafter import draft_model, tail_drafts
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.served_model import ServedModel
from molink.stage_protocol.draft_model import DraftModel
from molink.tasks import background_tasks
from molink_scheduler.placement import Plan, Shortage

LOCK_FILE = "coordinator.lock"

TLS_BUFFER_BYTES = 16 * 2**10
"""Buffer of each TLS connection, as much as a record holds. asyncio takes 256 KiB, which were 280
MB for a thousand agents that say little."""

UNMEASURED = (
    "The ring serves without drafts of its tail: what the layer takes is not known before the "
    "model's files are here."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Cluster of agents, and what serves those who join and ask."""

    cluster: Cluster
    joining: JoinService
    broker: Broker
    registry: Registry
    checkpoint: Checkpoint
    drafter: Checkpoint | None
    """Model that drafts, which agents fetch from here; None: there is none."""
    agents_tls: ssl.SSLContext
    """TLS context of the port for agents."""
    made_wait: Callable[[str], None]
    """To be called whenever a PC's download of weights waits for this side."""
    plan: Callable[[str | None], Awaitable[Plan | Shortage]]
    """The best plan for the nodes that are here now, split in this way (None: as we do)."""
    catalogue: Callable[[], Awaitable[JsonObject]]
    """The known models, and what each would be on the nodes that are here now."""


@asynccontextmanager
async def start_coordinator(
    settings: UpSettings, api_port: int, agents_port: int
) -> AsyncIterator[Coordinator]:
    """A coordinator whose rings come and go with its nodes. The ports are those of the API and for
    agents, at which the caller serves.

    Raises UserError for what the operator can mend, ControlError when the broker cannot be had.
    """
    # Before there is a broker, which gives up a client that is silent for seconds.
    model = await asyncio.to_thread(model_of, settings.served)
    split = [(0, model.description.layers)]
    await asyncio.to_thread(check_roles, settings.roles, model.path, split)
    drafter = await asyncio.to_thread(draft_model, settings.ring.drafter, model)
    planner = await asyncio.to_thread(_planner, settings, model, drafter)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_one("A coordinator", settings.data_dir / LOCK_FILE))
        stores = stack.enter_context(open_stores(settings.data_dir, model.card.name))
        registry = stores.registry
        asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        tls = await asyncio.to_thread(_certificate, settings)
        broker = await _started_broker(settings, registry, tls, stack)
        suspensions = Suspensions()
        book, size = NodeBook(), planner.facts.model_size(model.card.name)
        services = await stack.enter_async_context(
            NodeServices.open(settings, registry, book, size, model.checkpoint.config())
        )
        hub = await stack.enter_async_context(
            ControlHub.open(broker, registry, book, services, suspensions)
        )
        registry.url = f"https://{settings.public_host}:{agents_port}"
        registry.api_url = settings.api_url(api_port)
        host = _host_for_agents(settings, broker)
        certificates = certificates_shown(settings.api, tls)
        complete = partial(_completed, registry, services.relay, certificates)
        tasks = await stack.enter_async_context(background_tasks())
        yield Coordinator(
            cluster=_cluster(tasks, settings, model, planner, hub, services, stores, complete),
            joining=JoinService(registry, broker, host, tls.trust, size, suspensions),
            broker=broker,
            registry=registry,
            checkpoint=model.checkpoint,
            drafter=_drafter_to_offer(drafter, planner),
            agents_tls=tls.server_context(),
            made_wait=lambda pc: book.make_wait(pc, time.monotonic()),
            plan=lambda split: _best_plan(planner, book, split),
            catalogue=lambda: cluster_catalogue(_usable_nodes(book), planner.facts.dtype),
        )


def _cluster(
    tasks: asyncio.TaskGroup,
    settings: UpSettings,
    model: ServedModel,
    planner: ModelPlanner,
    hub: ControlHub,
    services: NodeServices,
    stores: Stores,
    complete: Callable[[ClusterReport], ClusterReport],
) -> Cluster:
    relay, config, ring = services.relay, model.checkpoint.config(), settings.ring
    is_encrypted = hub.access.broker.trust is not None
    pairs = RingPairs(settings.roles, is_encrypted)
    figures = planner.kv_figures
    lending = CellLending(hub, ConfirmedPairs(stores.registry), figures, is_encrypted, pairs)
    made = run_cluster(
        tasks,
        card=model.card,
        hub=hub,
        ledger=stores.ledger,
        planner=planner,
        readiness=Readiness(services.probing.asked_of),
        blame=Blame(),
        new_endpoint=_endpoints(settings, stores.registry.coordinator, model.card, relay),
        settings=ManagerSettings(
            settings.min_nodes,
            ring.codec,
            ring.standbys,
            ring.shadow,
            recoveries=RecoveryFiles(settings.data_dir / "recoveries"),
            nobody=NOBODY_HANDED if settings.replaces else NOBODY_JOINED,
        ),
        intake=replace(Intake.of(settings.api), roles=RingRoles(pairs.roles, pairs.place)),
        live=stores.live,
        ring_settings=_ring_settings(settings),
        complete=complete,
        audits=AuditSettings.of(settings.audit_share, settings.data_dir, config),
        lending=lending,
    )
    goes_over = partial(_goes_over, made.service.events)
    tasks.create_task(LettingGo(hub, goes_over, partial(_all_went, made.service)).run())
    return made


def _completed(
    registry: Registry,
    relay: CoordinatorRelay,
    certificates: tuple[CertificateReport, ...],
    report: ClusterReport,
) -> ClusterReport:
    """The report with what agents and users come by."""
    return replace(
        report,
        relay=RelayReport(relay.address, relay.trouble),
        certificates=certificates,
        invites=invites_report(registry, time.time()),
    )


def _goes_over(events: EventLedger, node: Node) -> None:
    text = f"{node.name} is handed to the coordinator that takes over from this one"
    events.add("order", text, node=node.name)


def _ring_settings(settings: UpSettings) -> str:
    """What a ring's stages were loaded with, and what they speak: a coordinator of other settings,
    or of another protocol, does not take them over."""
    speaks, served = own_protocols().newest, settings.served
    terms = settings.ring.terms(settings.api)
    return repr((speaks, served.model, served.dtype, served.kv_dtype, settings.ring.drafter, terms))


def _all_went(service: ClusterService, sentence: str) -> None:
    service.handed_over = sentence


def _best_plan(
    planner: ModelPlanner, book: NodeBook, split: str | None
) -> Awaitable[Plan | Shortage]:
    return plan_beside(planner.splitting(split).question(_usable_nodes(book)))


def _usable_nodes(book: NodeBook) -> list[Node]:
    return [node for node in book if node.may_serve]


def _certificate(settings: UpSettings) -> TlsFiles:
    """Certificate of the broker and of the port for agents."""
    if not settings.tls_cert:
        return own_certificate(settings.data_dir)
    return operators_certificate(
        settings.tls_cert, settings.tls_key, settings.tls_ca, settings.public_host
    )


async def _started_broker(
    settings: UpSettings, registry: Registry, tls: TlsFiles, stack: AsyncExitStack
) -> Broker:
    """A broker that every member may use."""
    users = Path(settings.broker_users) if settings.broker_users else None
    broker = open_broker(settings.broker, settings.host, settings.broker_port, tls, users)
    if broker.trust is None:
        log.warning(
            "The broker at %s speaks plain MQTT: passwords and keys on the way there can be read "
            "and changed. Use mqtts://.",
            broker.address,
        )
    await allow_members(broker, registry)
    await broker.start()
    stack.push_async_callback(broker.stop)
    registry.broker_port = 0 if "://" in settings.broker else broker.address.port
    return broker


def _planner(settings: UpSettings, model: ServedModel, drafter: DraftModel | None) -> ModelPlanner:
    hub_id, name = model.checkpoint.hub_id, model.card.name
    weights = WeightsSource(model=hub_id or name, from_hub=bool(hub_id))
    planner = ModelPlanner.of(model.path, model.description, weights, settings, name, drafter)
    tail = tail_drafts(settings.ring.drafter, model.path)
    trouble = UNMEASURED if tail.drafts and not planner.drafts else tail.trouble
    return replace(planner, trouble=trouble)


def _drafter_to_offer(drafter: DraftModel | None, planner: ModelPlanner) -> Checkpoint | None:
    """The model that drafts, where agents fetch it from here."""
    planned = planner.drafter
    if drafter is None or planned is None or planned.refused or planned.weights.from_hub:
        return None
    return open_checkpoint(drafter.model)


def _host_for_agents(settings: UpSettings, broker: Broker) -> str:
    """Host at which agents reach the broker: an external one at its own, ours where we are."""
    return broker.address.host if "://" in settings.broker else settings.public_host


def _endpoints(
    settings: UpSettings, keys: KeyPair, card: ModelCard, relay: CoordinatorRelay
) -> Callable[[int], CoordinatorEndpoint]:
    """Maker of the endpoint of each ring, by its epoch."""
    terms = replace(settings.ring.terms(settings.api), audited=settings.audit_share > 0)
    return lambda epoch: CoordinatorEndpoint(
        keys=keys,
        card=card,
        terms=terms,
        listen_host=settings.host,
        public_host=settings.public_host,
        relay=relay,
        epoch=epoch,
    )
