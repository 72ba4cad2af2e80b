"""From settings to a running service: describe the model, plan the ring, start it, connect to
it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace

from molink.checkpoint.description import ModelDescription, describe
from molink.config.serve_settings import ServeSettings
from molink.coordinator.local.control import LocalControl
from molink.coordinator.local.fixed_plan import RingPlan, fixed_plan
from molink.coordinator.local.local_report import local_nodes_report
from molink.coordinator.local.local_ring import EPOCH, LocalRing
from molink.coordinator.requests.link_memory import LinkMemoryFile, keeping_up_to_date
from molink.coordinator.requests.ring import COORDINATOR
from molink.coordinator.requests.ring_client import RingClient
from molink.coordinator.requests.ring_client_links import RingClientLinks
from molink.coordinator.requests.ring_links import known_links
from molink.coordinator.rings.agent_ring import JoinTerms
from molink.serving.model_card import load_tokenizer, model_card
from molink.serving.served_model import checked_model_len, model_path, public_name
from molink.serving.service import ModelCard

__all__ = ["start_coordinator"]

PORT_NAME = "sampled"
"""Of the coordinator's port; a relay would know it by this name."""


@asynccontextmanager
async def start_coordinator(
    settings: ServeSettings, progressed: Callable[[int, float], None]
) -> AsyncIterator[RingClient]:
    """A service over a local ring; `progressed(stage, fraction)` is called while weights load.

    Raises UserError (of which CheckpointError and UnsupportedModelError are kinds) for what the
    operator can mend, StageError when a stage process fails.
    """
    path = model_path(settings.model)
    description = describe(path)
    card = _card(settings, path, description)
    plan = fixed_plan(settings, path, description)
    memory = LinkMemoryFile.of_user() if settings.hosts is not None else None
    if memory is not None:
        plan = replace(plan, known=memory.read(time.time()))
    async with AsyncExitStack() as stack:
        links = RingClientLinks.bind(plan.hosts.coordinator_address, EPOCH)
        stack.callback(links.close)
        control = await stack.enter_async_context(LocalControl.start(plan))
        terms = _terms(settings, control, plan, links.port)
        ring = await stack.enter_async_context(LocalRing.start(control, plan, terms, progressed))
        coordinator = await _coordinator(card, ring, links)
        watching = asyncio.create_task(coordinator.watch())
        stack.callback(watching.cancel)
        await stack.enter_async_context(_remembering(memory, ring, coordinator))
        await coordinator.choose_codec(settings.codec)
        yield coordinator


def _card(settings: ServeSettings, path: str, description: ModelDescription) -> ModelCard:
    length = checked_model_len(settings.model_len_max, description)
    return model_card(public_name(path), description, length, load_tokenizer(description))


def _terms(settings: ServeSettings, control: LocalControl, plan: RingPlan, port: int) -> JoinTerms:
    return JoinTerms(
        micro_batch_count=settings.micro_batch_count,
        span_tokens=settings.span_tokens,
        policy=settings.policy,
        coordinator_key=control.hub.registry.coordinator.public_z85,
        coordinator_addresses=(f"{plan.hosts.coordinator_address}:{port}",),
        coordinator_port_name=PORT_NAME,
        relay="",
        upload_mbps=settings.upload_mbps,
    )


async def _coordinator(card: ModelCard, ring: LocalRing, links: RingClientLinks) -> RingClient:
    """Connected to the ring's head."""
    await links.connect(ring.head_address, ring.plan.memory(COORDINATOR, 0))
    fitting = min(card.model_len_max, ring.agents.kv_tokens_capacity)
    lost = asyncio.get_running_loop().create_future()
    coordinator = RingClient(replace(card, model_len_max=fitting), ring, links, lost)
    serving_since = time.monotonic()
    coordinator.report = lambda: {
        "nodes": local_nodes_report(ring, coordinator.tokens_told, time.monotonic() - serving_since)
    }
    return coordinator


def _remembering(
    memory: LinkMemoryFile | None, ring: LocalRing, coordinator: RingClient
) -> AbstractAsyncContextManager[None]:
    """Keep what is seen of links between hosts; processes of one machine are never met again."""
    if memory is None:
        return nullcontext()
    links, address_of = coordinator.links, ring.plan.address
    return keeping_up_to_date(memory, lambda: known_links(ring, links, address_of, time.time()))
