"""A ring that this machine starts: one process per stage, on request a home link on every hop.

Stages load at the same time, each on a thread of its own; then every link is opened, through the
emulator when there is one, and the ring serves. Whatever fails on the way, and however the block
is left, every process that was started here is ended here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from molink.config.link_schedule import LinkSchedule
from molink.config.ring_hosts import LOCAL_ADDRESS, RingHosts
from molink.errors import StageError
from molink.runtime.child_process import ChildProcess
from molink.runtime.known_links import KnownLinks
from molink.runtime.ring import COORDINATOR, RingFacts
from molink.runtime.stage_handle import StageHandle
from molink.runtime.supervision import JoinRing, LoadStage, StageLoaded
from molink_scheduler.link_facts import LinkMemory

__all__ = ["EPOCH", "LocalRing", "RingPlan", "gathered"]

EMULATOR_MODULE = "molink.transport.emulator"
EPOCH = 1
"""A local ring is built once; a ring that replaces a lost node counts on from here."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RingPlan:
    """What to start."""

    stages: tuple[LoadStage, ...]
    hosts: RingHosts
    """Where they run; all here when there is a `link`."""
    link: LinkSchedule | None
    micro_batch_count: int | None
    """None: the measured round decides, among 1 to twice the stages."""
    span_tokens: int | None
    policy: str
    upload_mbps: float | None
    coordinator_port: int
    """Where the coordinator listens for the tail."""
    model_len_max: int
    """No sequence grows longer: what a single stage must at least hold."""
    known: KnownLinks = field(default_factory=KnownLinks)
    """What links start from; nothing between processes of one machine."""

    def address(self, place: int) -> str:
        """Of a stage's host, or of the coordinator's."""
        hosts = self.hosts
        return hosts.coordinator_address if place == COORDINATOR else hosts.stages[place].address

    def memory(self, source: int, target: int) -> LinkMemory | None:
        """What is known of a link; None: nothing."""
        return self.known.memory(self.address(source), self.address(target))


@dataclass(slots=True)
class LocalRing:
    """The processes of a running ring."""

    plan: RingPlan
    stages: list[StageHandle]
    kv_tokens_capacity: int
    head_address: str
    """Where the coordinator sends requests."""
    emulator: ChildProcess | None

    @classmethod
    @asynccontextmanager
    async def start(
        cls, plan: RingPlan, progressed: Callable[[int, float], None]
    ) -> AsyncIterator["LocalRing"]:
        """Start, load and join all stages; `progressed(stage, fraction)` while weights load.

        Raises UserError for what the operator can mend, StageError when a process fails.
        """
        async with AsyncExitStack() as stack:
            stages = await _start_stages(plan, stack)
            loaded = await _load(stages, progressed)
            emulator = await _start_emulator(plan, loaded, stack)
            addresses = await _addresses(plan, loaded, emulator)
            capacity = min(stage.kv_tokens_capacity for stage in loaded)
            await _join(plan, stages, addresses, capacity)
            yield cls(plan, stages, capacity, addresses.head, emulator)

    @property
    def facts(self) -> RingFacts:
        """What stays as it is."""
        link = self.plan.link
        shape = link.steps[0].shape if link is not None else None
        return RingFacts(EPOCH, self.plan.policy, self.plan.upload_mbps, shape)

    async def watch(self) -> None:
        """Follow the stages' health; raises StageError as soon as a process is gone."""
        watches = [stage.watch() for stage in self.stages]
        if self.emulator is not None:
            watches.append(_watch_emulator(self.emulator))
        await gathered(watches)


@dataclass(frozen=True, slots=True)
class _Addresses:
    """Where each sender connects: the emulator's ports, or the receivers' own."""

    head: str
    """Coordinator to head."""
    next_of: tuple[str, ...]
    """Each stage to the one after it, the tail to the head."""
    coordinator: str
    """Tail to coordinator."""


async def _start_stages(plan: RingPlan, stack: AsyncExitStack) -> list[StageHandle]:
    stages: list[StageHandle] = []
    stack.push_async_callback(_stop_all, stages)
    for index, (load, host) in enumerate(zip(plan.stages, plan.hosts.stages, strict=True)):
        stages.append(await StageHandle.start(f"stage {index}", load, host.command))
    return stages


async def _stop_all(stages: list[StageHandle]) -> None:
    await asyncio.gather(*(stage.child.stop() for stage in stages))


async def _load(
    stages: list[StageHandle], progressed: Callable[[int, float], None]
) -> list[StageLoaded]:
    def report(index: int) -> Callable[[float], None]:
        return lambda fraction: progressed(index, fraction)

    return await gathered(stage.wait_loaded(report(index)) for index, stage in enumerate(stages))


async def _join(
    plan: RingPlan, stages: list[StageHandle], addresses: _Addresses, capacity: int
) -> None:
    tail = len(stages) - 1
    await gathered(
        stage.join(
            JoinRing(
                epoch=EPOCH,
                next_address=addresses.next_of[index],
                coordinator_address=addresses.coordinator if index == tail else None,
                kv_tokens_capacity=capacity,
                micro_batch_count=plan.micro_batch_count,
                micro_batch_candidates=tuple(range(1, 2 * len(stages) + 1)),
                span_tokens=plan.span_tokens,
                policy=plan.policy,
                upload_bytes_per_s=plan.upload_mbps * 1e6 / 8 if plan.upload_mbps else None,
                next_memory=plan.memory(index, (index + 1) % len(stages)),
                coordinator_memory=plan.memory(index, COORDINATOR) if index == tail else None,
            )
        )
        for index, stage in enumerate(stages)
    )


def _receivers(plan: RingPlan, loaded: list[StageLoaded]) -> list[str]:
    """`host:port` that each hop leads to: coordinator to head, stage to stage, tail to head, tail
    to us."""
    head_port = loaded[0].coordinator_port
    assert head_port is not None, "the head listens for the coordinator"
    hosts = [host.address for host in plan.hosts.stages]
    ports = [stage.port for stage in loaded]
    around = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
    ours = f"{plan.hosts.coordinator_address}:{plan.coordinator_port}"
    return [f"{hosts[0]}:{head_port}", *around[1:], around[0], ours]


async def _start_emulator(
    plan: RingPlan, loaded: list[StageLoaded], stack: AsyncExitStack
) -> ChildProcess | None:
    if plan.link is None:
        return None
    targets = _receivers(plan, loaded)
    child = await ChildProcess.start(EMULATOR_MODULE, [plan.link.text, *targets])
    stack.push_async_callback(child.stop)
    return child


async def _addresses(
    plan: RingPlan, loaded: list[StageLoaded], emulator: ChildProcess | None
) -> _Addresses:
    receivers = _receivers(plan, loaded)
    if emulator is not None:
        line = await emulator.read_line()
        if not line:
            raise StageError("The link emulator did not start: run the command again.")
        receivers = [f"{LOCAL_ADDRESS}:{port}" for port in json.loads(line)["ports"]]
    first, *middle, last = (f"tcp://{receiver}" for receiver in receivers)
    return _Addresses(first, tuple(middle), last)


async def _watch_emulator(emulator: ChildProcess) -> None:
    while await emulator.read_line():
        pass
    raise StageError(f"The link emulator (pid {emulator.pid}) ended unexpectedly.")


async def gathered(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order; the first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
