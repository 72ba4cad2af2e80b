"""From `molink serve`'s settings to a running cluster of local nodes.

Everything of its control plane lies in a temporary folder and ends with it; the broker listens on
loopback and lets in only these nodes. Tokens and tensors never pass there.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from molink.config.data_dir import state_dir
from molink.config.settings import ServeSettings
from molink.control.addresses import Credentials
from molink.control.broker.broker import Broker
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.identity import KeyPair
from molink.control.messages.joining import request_to_join
from molink.control.registry.registry import Registry
from molink.coordinator.audits.auditor import AuditSettings
from molink.coordinator.cluster import Cluster, Stores, model_of, open_stores, run_cluster
from molink.coordinator.local.fixed_plan import (
    LOCAL_ADDRESS,
    FixedPlanner,
    RingPlan,
    check_memory,
    fixed_plan,
)
from molink.coordinator.local.local_endpoint import LocalEndpoint
from molink.coordinator.local.local_node import LocalNode
from molink.coordinator.nodes.hub import ControlHub, allow_members
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.reports.expiries import certificates_shown
from molink.coordinator.requests.intake import Intake
from molink.coordinator.requests.prefill_rings import RingRoles, check_roles
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.recovery_files import RecoveryFiles
from molink.coordinator.upkeep.settings import ManagerSettings
from molink.errors import UserError
from molink.node.stage_handle import WarmStage
from molink.serving.drafter import draft_model, tail_drafts
from molink.serving.model_card import ModelCard
from molink.tasks import background_tasks
from molink.version import version

INVITE_S = 60.0
"""Its nodes are admitted in the same moment."""

BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0
"""Waits before a failed stage is tried again: soon, as no other node can take its layers."""


@asynccontextmanager
async def start_local(settings: ServeSettings) -> AsyncIterator[Cluster]:
    """A cluster whose nodes run here, with one ring, which is rebuilt when it is lost.

    Raises UserError (of which CheckpointError and UnsupportedModelError are kinds) for what the
    operator can mend; ends with StageError or UserError when the first ring does not stand.
    """
    model = model_of(settings.served)
    drafter = draft_model(settings.ring.drafter, model)
    tail = tail_drafts(settings.ring.drafter, model.path)
    plan = fixed_plan(settings, model.path, model.description, tail.drafts)
    plan = replace(plan.drafting(drafter), trouble=tail.trouble)
    free_bytes = psutil.virtual_memory().available
    check_roles(plan.roles, model.path, (work.layers for work in plan.works))
    check_memory(plan.works * len(plan.roles), model.path, free_bytes, settings.ring.standbys)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(_folder()))
        plan = replace(plan, pairs_folder=str(folder))
        stores = stack.enter_context(open_stores(folder, model.card.name))
        registry, warm = stores.registry, WarmStage()
        stack.push_async_callback(warm.drop)
        nodes = _admitted(registry, plan, warm)
        broker = await _started_broker(registry)
        stack.push_async_callback(broker.stop)
        hub = await stack.enter_async_context(
            ControlHub.open(broker, registry, NodeBook(local=True))
        )
        tasks = await stack.enter_async_context(background_tasks())
        for node in nodes:
            tasks.create_task(node.run(broker.address))
        audits = AuditSettings.of(0.0, folder, model.checkpoint.config())
        yield _cluster(tasks, settings, model.card, plan, nodes, hub, stores, audits)


def _cluster(
    tasks: asyncio.TaskGroup,
    settings: ServeSettings,
    card: ModelCard,
    plan: RingPlan,
    nodes: Sequence[LocalNode],
    hub: ControlHub,
    stores: Stores,
    audits: AuditSettings,
) -> Cluster:
    public_key = stores.registry.coordinator.public_z85
    stages = len(plan.works) * len(plan.roles)
    planned = tuple(node.node_id for node in nodes[:stages])
    planner = FixedPlanner(planned, plan.works, settings.ring.standbys, plan.trouble)
    roles = RingRoles.of_nodes(plan.roles, tuple(map(frozenset, planner.rings)))
    ring, terms = settings.ring, settings.ring.terms(settings.api)
    certificates = certificates_shown(settings.api) or None
    return run_cluster(
        tasks,
        card=card,
        hub=hub,
        ledger=stores.ledger,
        planner=planner,
        readiness=Readiness(lambda node, others: frozenset(), settle_s=0.0),
        blame=Blame(BACKOFF_FIRST_S, BACKOFF_MAX_S),
        new_endpoint=partial(LocalEndpoint, card, plan, terms, public_key, nodes),
        settings=ManagerSettings(
            stages,
            ring.codec,
            ring.standbys,
            ring.shadow,
            first_must_stand=True,
            recoveries=_recoveries(),
        ),
        intake=replace(Intake.of(settings.api), roles=roles),
        complete=lambda told: replace(told, certificates=certificates),
        live=stores.live,
        audits=audits,
    )


def _recoveries() -> RecoveryFiles:
    """Folder for logs of recoveries; a user without a home has none."""
    try:
        return RecoveryFiles(state_dir() / "recoveries")
    except RuntimeError:
        return RecoveryFiles()


def _folder() -> "tempfile.TemporaryDirectory[str]":
    try:
        return tempfile.TemporaryDirectory(prefix="molink-serve-")
    except OSError as error:
        raise UserError(
            f"No temporary folder can be made ({error.strerror}): set TMPDIR to one that can."
        ) from None


def _admitted(registry: Registry, plan: RingPlan, warm: WarmStage) -> list[LocalNode]:
    """A node for each stage and standby, let in as an agent is, with keys of its own."""
    now, stages = time.time(), range(plan.nodes)
    invite = registry.make_invite(INVITE_S, len(stages), "", now, f"https://{LOCAL_ADDRESS}")
    nodes = []
    for index in stages:
        request = request_to_join(invite, plan.name(index), version(), now)
        member = registry.admit(KeyPair.generate().public, request, now).node
        credentials = Credentials(member.node_id, member.password)
        nodes.append(LocalNode.of(plan, index, credentials, warm))
    return nodes


async def _started_broker(registry: Registry) -> Broker:
    broker = EmbeddedBroker(LOCAL_ADDRESS, 0)
    await allow_members(broker, registry)
    await broker.start()
    return broker
