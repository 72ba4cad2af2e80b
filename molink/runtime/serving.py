"""From settings to a running service: describe the model, plan the ring, start it, connect to
it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from molink.config.layer_split import even_split, parse_layers
from molink.config.ring_hosts import RingHosts
from molink.config.serve_settings import ServeSettings
from molink.errors import UserError
from molink.executor.description import ModelDescription, describe
from molink.models import DEMO_MODEL_DIR
from molink.runtime.coordinator import Coordinator
from molink.runtime.coordinator_links import CoordinatorLinks
from molink.runtime.link_memory import LinkMemoryFile, keeping_up_to_date
from molink.runtime.local_ring import EPOCH, LocalRing, RingPlan
from molink.runtime.model_card import load_tokenizer, model_card
from molink.runtime.ring import COORDINATOR
from molink.runtime.ring_links import known_links
from molink.runtime.supervision import LoadStage
from molink_scheduler.upload_budget import check_cap

__all__ = ["DEMO_MODEL", "checked_model_len", "model_path", "public_name", "start_coordinator"]

DECODE_HEADER_BYTES = 250
"""Frames around one decoded row: chunk and batch headers, acknowledgement."""

DECODE_TOKENS_PER_S_MIN = 5.0
"""What one decode stream needs: slower than people read, an answer is no use."""

DEMO_MODEL = "demo"
"""The MODEL name of the small model that ships with the project."""


@asynccontextmanager
async def start_coordinator(
    settings: ServeSettings, progressed: Callable[[int, float], None]
) -> AsyncIterator[Coordinator]:
    """A service over a local ring; `progressed(stage, fraction)` is called while weights load.

    Raises UserError (of which CheckpointError and UnsupportedModelError are kinds) for what the
    operator can mend, StageError when a stage process fails.
    """
    path = model_path(settings.model)
    description = describe(path)
    model_len_max = checked_model_len(settings.model_len_max, description)
    tokenizer = load_tokenizer(description)
    hosts = settings.hosts or RingHosts.local(settings.nodes)
    links = CoordinatorLinks.bind(hosts.coordinator_address, EPOCH)
    try:
        plan = _plan(settings, path, description, model_len_max, hosts, links.inbound.port)
        memory = LinkMemoryFile.of_user() if settings.hosts is not None else None
        if memory is not None:
            plan = replace(plan, known=memory.read(time.time()))
        async with LocalRing.start(plan, progressed) as ring:
            await links.connect(ring.head_address, plan.memory(COORDINATOR, 0))
            fitting = min(model_len_max, ring.kv_tokens_capacity)
            card = model_card(public_name(path), description, fitting, tokenizer)
            lost = asyncio.get_running_loop().create_future()
            coordinator = Coordinator(card, ring, links, lost)
            watching = asyncio.create_task(coordinator.watch())
            try:
                async with _remembering(memory, ring, coordinator):
                    await coordinator.choose_wire(settings.wire)
                    yield coordinator
            finally:
                watching.cancel()
    finally:
        links.close()


def _remembering(
    memory: LinkMemoryFile | None, ring: LocalRing, coordinator: Coordinator
) -> AbstractAsyncContextManager[None]:
    """Keep what is seen of links between hosts; processes of one machine are never met again."""
    if memory is None:
        return nullcontext()
    return keeping_up_to_date(memory, lambda: known_links(ring, coordinator.links, time.time()))


def model_path(model: str) -> str:
    """A directory as every stage finds it, in whatever directory it starts; a hub id as it is."""
    if model == DEMO_MODEL:
        return str(DEMO_MODEL_DIR)
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def public_name(path: str) -> str:
    """What API users call the model: a hub id as it is, of a directory only its own name."""
    return Path(path).resolve().name if Path(path).is_dir() else path


def checked_model_len(wanted: int | None, description: ModelDescription) -> int:
    """What is served of `--max-model-len`. Raises UserError when it is over the model's own."""
    if wanted is None:
        return description.model_len_max
    if wanted > description.model_len_max:
        raise UserError(
            f"--max-model-len {wanted} is over the model's own {description.model_len_max}: "
            "use that or less."
        )
    return wanted


def _check_upload(settings: ServeSettings, description: ModelDescription) -> None:
    if settings.upload_mbps is None:
        return
    element_bytes = 4 if settings.dtype == "float32" else 2
    message_bytes = description.hidden_size * element_bytes + DECODE_HEADER_BYTES
    try:
        check_cap(settings.upload_mbps * 1e6 / 8, message_bytes * DECODE_TOKENS_PER_S_MIN)
    except ValueError as error:
        raise UserError(f"--upload-mbps {settings.upload_mbps:g}: {error}.") from None


def _plan(
    settings: ServeSettings,
    path: str,
    description: ModelDescription,
    model_len_max: int,
    hosts: RingHosts,
    coordinator_port: int,
) -> RingPlan:
    if settings.layers is None:
        ranges = even_split(description.layers, settings.nodes)
    else:
        ranges = parse_layers(settings.layers, description.layers, settings.nodes)
    _check_upload(settings, description)
    stages = tuple(
        LoadStage(
            model=path,
            layers=layers,
            device=settings.device,
            dtype=settings.dtype,
            threads=settings.threads,
            kv_tokens=settings.kv_tokens,
            address=host.address,
            stages_here=sum(other.address == host.address for other in hosts.stages),
        )
        for layers, host in zip(ranges, hosts.stages, strict=True)
    )
    return RingPlan(
        stages=stages,
        hosts=hosts,
        link=settings.link,
        micro_batch_count=settings.micro_batch_count,
        span_tokens=settings.span_tokens,
        policy=settings.policy,
        upload_mbps=settings.upload_mbps,
        coordinator_port=coordinator_port,
        model_len_max=model_len_max,
    )
