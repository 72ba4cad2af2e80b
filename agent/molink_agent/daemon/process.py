"""An agent's process: one for each data directory, wired here, with its socket.

Starts the stages of this PC's nodes: fetches weights and starts the process meanwhile.

All nodes share one directory of weights. They fetch one after the other, as only one process may
write there at a time, and a layer that two of them hold lies there once. What a node's stage runs
from, another one's download never removes.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from molink.checkpoint.stage_size import stage_size
from molink.config.data_dir import only_one
from molink.control.identity import KeyPair
from molink.control.messages.payloads import AssignedWork
from molink.errors import StageError, UserError
from molink.node.control_session import ControlSession
from molink.node.stage_handle import StageHandle, WarmStage
from molink.node.stage_manager import StageManager
from molink.stage_protocol.messages import LoadStage
from molink.tasks import background_tasks
from molink.transport.paths.reach import Reach
from molink.wire.curve_keys import CurveKeys
from molink_agent.daemon.agent import Agent, LeftError
from molink_agent.daemon.agent_log import StatusListener, logged
from molink_agent.daemon.device_node import DeviceNode
from molink_agent.daemon.given import GivenRecorder, Totals, ask_totals
from molink_agent.daemon.measurements import Budgets, PeerEndpoint, ProbeRunner
from molink_agent.daemon.membership import (
    MemberAdmission,
    Membership,
    device_dir,
    forget_membership,
)
from molink_agent.daemon.reports import DeviceReports
from molink_agent.daemon.routes import ListenAddress, LocalPorts, RelayedRoutes, SharedUplink
from molink_agent.daemon.status import answer_owner, status_of
from molink_agent.daemon.step_times import KeptStepTimes
from molink_agent.daemon.this_pc import DeviceStage, Measured, ThisPc
from molink_agent.data_files import WEIGHTS_DIR, AgentOptions
from molink_agent.limits.assignment_check import refusal_of_work
from molink_agent.limits.game_watch import GameWatch
from molink_agent.limits.lent import lent_cache, lent_disk_bytes, unused_memory_bytes
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.owner_policy import OwnerPolicy, UseWatch
from molink_agent.local_socket import SOCKET_NAME, answering
from molink_agent.network.port_mapping import PortMapper
from molink_agent.probe.full_screen import FullScreenProbe
from molink_agent.probe.gpus import VISIBLE_VARIABLE, GpuProbe
from molink_agent.probe.input_idle import input_sources
from molink_agent.probe.machine import disk_free_bytes, read_machine, wsl_version
from molink_agent.status_text import StatusNews, now_sentence
from molink_agent.weights import HubSource, WeightsLimits, ensure_weights
from molink_agent.weights.source import Downloaded
from molink_scheduler.units import GB


@dataclass(slots=True)
class WeightsCache:
    """The weights on this PC's disk, shared by all its nodes."""

    pc: ThisPc
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    _used: dict[int, Path] = field(default_factory=dict)
    """Directory of weights that each node asked for last, by its number."""

    async def get(
        self, number: int, member: Membership, work: AssignedWork, report: Callable[[float], None]
    ) -> str:
        """Fetch what is missing of a stage's layers, from the hub or from the coordinator that the
        node has joined; the directory to load them from. Raises MolinkError."""
        source = HubSource(work.weights.model) if work.weights.from_hub else member.weights
        stage = self.pc.stages[number]

        def progress(downloaded: Downloaded) -> None:
            stage.download = downloaded
            report(downloaded.fraction)

        async with self._fetching:
            try:
                path = await ensure_weights(
                    source,
                    range(*work.layers),
                    self.pc.data_dir / WEIGHTS_DIR,
                    WeightsLimits(disk_bytes_max=self._cap(), keep=self._kept(number)),
                    progress,
                )
            finally:
                stage.download = None
        self._used[number] = path
        return str(path)

    def _cap(self) -> int | None:
        limits, free = self.pc.limits.limits, disk_free_bytes(self.pc.data_dir)
        return lent_disk_bytes(limits, free, 0) if limits.disk_bytes else None

    def _kept(self, number: int) -> frozenset[Path]:
        """Weights from which the stages of other nodes run."""
        return frozenset(
            path
            for other, path in self._used.items()
            if other != number and self.pc.stages[other].manager.busy
        )


@dataclass(frozen=True, slots=True)
class _Promise:
    """Memory that an assignment may take."""

    limits: OwnerLimits
    """OwnerLimits of the owner under which the memory was promised."""
    memory_bytes: int


@dataclass(slots=True)
class AgentStageLauncher:
    """Starts the stages of one node; an agent's StageLauncher."""

    number: int
    """The node's."""
    admission: MemberAdmission
    owner: OwnerPolicy
    listen_address: ListenAddress
    cache: WeightsCache
    _warm: WarmStage = field(default_factory=WarmStage)
    _memory_bytes: int = 0
    """Lent to the stage that is being prepared."""

    async def prepare(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        """Start the stage's process, and download meanwhile what is missing of its layers."""
        promised = await self._check(work)
        await self._warm.begin(work.threads)
        try:
            member = self.admission.membership
            directory = await self.cache.get(self.number, member, work, report)
            self._memory_bytes = (await self._check(work, directory, promised)).memory_bytes
            return directory
        except BaseException:
            await self._warm.drop()
            raise

    async def start(
        self, work: AssignedWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        """Tell the process what to load."""
        load = self._command(work, directory, allowed)
        return await self._warm.start("This PC's stage", load)

    async def more(
        self, work: AssignedWork, allowed: tuple[str, ...], report: Callable[[float], None]
    ) -> LoadStage:
        """Download what is missing of layers that the stage takes beside its own."""
        self._memory_bytes = (await self._check(work)).memory_bytes
        directory = await self.cache.get(self.number, self.admission.membership, work, report)
        return self._command(work, directory, allowed)

    def _command(self, work: AssignedWork, directory: str, allowed: tuple[str, ...]) -> LoadStage:
        pair, pc = self.admission.pair, self.cache.pc
        lent = lent_cache(pc.limits.limits, pc.data_dir, len(pc.stages))
        return LoadStage(
            model=directory,
            work=work,
            address=self.listen_address.host,
            keys=CurveKeys(pair.public_z85, pair.secret_z85, allowed),
            memory_bytes=self._memory_bytes,
            cache_room=lent if work.prefix_cache else None,
        )

    async def stand_ready(self, work: AssignedWork) -> None:
        """Start a process that waits for a stage, where its owner would not miss the memory and has
        set no bound: a stage may fill it."""
        pc = self.cache.pc
        machine = await asyncio.to_thread(read_machine, pc.data_dir)
        is_bound = pc.limits.limits.memory_bytes is not None
        if not is_bound and unused_memory_bytes(machine) >= WARM_BYTES_SPARE:
            await self._warm.begin(work.threads)

    async def stand_down(self) -> None:
        """End the process that waits."""
        await self._warm.drop()

    async def _check(
        self, work: AssignedWork, directory: str = "", promised: _Promise | None = None
    ) -> _Promise:
        """Hold it against what the owner lends now, once its files are in `directory` by what they
        take. Raises StageError.

        The memory that was `promised` before the download still counts unless the owner has changed
        a limit: the process that waits takes some of it, and nobody is to download in vain.
        """
        wish, pc = self.owner.wish, self.cache.pc
        withheld, limits = "" if wish.wish == "serve" else wish.reason, pc.limits.limits
        kept_bytes = 0
        if promised is not None and promised.limits == limits:
            kept_bytes = promised.memory_bytes
        loan = await asyncio.to_thread(pc.loan, pc.stages[self.number], withheld, kept_bytes)
        size = None
        if directory:
            size = await asyncio.to_thread(stage_size, Path(directory), work.layers)
        refused = refusal_of_work(work, loan, size)
        if refused:
            raise StageError(refused)
        return _Promise(limits, loan.memory_bytes)


WARM_BYTES_SPARE = 2 * GB
"""Bytes of unused memory from which a process may wait for a stage: with torch it takes a quarter
of a GB or more."""

LOCK_FILE = "agent.lock"

STATUS_EVERY_S = 1.0
"""Seconds between two comparisons of the status, for the listener and for the log."""

NAME_CHARACTERS_MAX = 60
"""Most characters of a node's name, as messages allow."""

log = logging.getLogger(__name__)


async def run_agent(
    data_dir: Path, pair: KeyPair, membership: Membership, listener: StatusListener
) -> None:
    """Run until cancelled, left, removed or replaced. Raises UserError or ControlError with the
    reason."""
    with only_one("An agent", data_dir / LOCK_FILE), logged(data_dir, listener):
        agent = build_agent(data_dir, pair, membership)
        try:
            async with answering(data_dir / SOCKET_NAME, partial(answer_owner, agent)):
                await _run_with_news(agent, listener)
        except LeftError as left:
            forget_membership(data_dir)
            log.info("%s", left)
            listener.event(str(left))
        except UserError as error:
            log.info("ended: %s", error)
            raise


async def _run_with_news(agent: Agent, listener: StatusListener) -> None:
    async with background_tasks() as group:
        group.create_task(_show_news(agent, listener))
        group.create_task(_recorder(agent).run())
        await agent.run()


def _recorder(agent: Agent) -> GivenRecorder:
    def totals() -> Totals | None:
        first = agent.first
        return ask_totals(first.admission.membership) if first.session.connected else None

    return GivenRecorder(agent.pc.data_dir, totals)


async def _show_news(agent: Agent, listener: StatusListener) -> None:
    news = StatusNews()
    while True:
        status = status_of(agent)
        for sentence in news.update(status):
            log.info("%s", sentence)
            listener.event(sentence)
        listener.status(now_sentence(status))
        await asyncio.sleep(STATUS_EVERY_S)


# -- wiring ----------------------------------------------------------------------------------------


def build_agent(data_dir: Path, pair: KeyPair, membership: Membership) -> Agent:
    """Wire an agent that is not running yet. Raises UserError for files that cannot be read."""
    limits, options = LimitsFile(data_dir), AgentOptions.load(data_dir)
    limits.read()
    wsl = wsl_version(os.uname().release) is not None
    visible = os.environ.get(VISIBLE_VARIABLE)
    gpus = GpuProbe(wsl=wsl, visible=visible)
    pc = ThisPc(data_dir, limits, gpus, Measured(clock_offset_s=membership.clock_offset_s))
    watch = UseWatch(input_sources(os.environ, wsl=wsl), gpus, wsl=wsl)
    screen = FullScreenProbe(os.environ, wsl=wsl)
    games = GameWatch.on(GpuProbe(wsl=wsl, visible=visible), screen, wsl=wsl)
    owner = OwnerPolicy(data_dir, limits, watch, games)
    first = MemberAdmission(pair, membership.name, data_dir, kept=membership)
    factory = _NodeFactory(pc, owner, options, first)
    return Agent(
        pc,
        owner,
        factory.mapper,
        lambda: options.map_ports and limits.limits.direct,
        factory.make_node,
    )


def node_name(pc: str, number: int) -> str:
    """Name of a node for people: the PC's own, of its second device "NAME (2)"."""
    ending = f" ({number + 1})" if number else ""
    return pc[: NAME_CHARACTERS_MAX - len(ending)] + ending


class _NodeFactory:
    """Makes device nodes of what the PC has once."""

    def __init__(
        self, pc: ThisPc, owner: OwnerPolicy, options: AgentOptions, first: MemberAdmission
    ) -> None:
        self._pc, self._owner, self._options, self._first = pc, owner, options, first
        self._started_unix_s = pc.next_start(time.time() + pc.measured.clock_offset_s)
        self._listen_address = ListenAddress(options, pc.limits)
        self._ports = LocalPorts()
        self._uplink = SharedUplink(self._cap_bytes_per_s, pc.upload_caps_changed)
        self._cache = WeightsCache(pc)
        self._step_times = KeptStepTimes(pc.data_dir)
        self._budgets = Budgets.full()
        self.mapper = PortMapper()

    def make_node(self, number: int) -> DeviceNode:
        """A node that is not running yet."""
        pc, admission = self._pc, self._admission(number)
        node_id = admission.pair.node_id
        self._ports.add_node(node_id)
        routes = RelayedRoutes(
            node_id,
            self._listen_address,
            self._ports,
            self._uplink,
            self.mapper,
            lambda: Reach.of(self._first.of_pc.hosts),
        )
        session = ControlSession(node_id, admission.name, started_unix_s=self._started_unix_s)
        launcher = AgentStageLauncher(
            number, admission, self._owner, self._listen_address, self._cache
        )
        manager = StageManager(launcher, routes, session.publish_fact)
        stage = DeviceStage(manager)
        pc.stages.append(stage)
        reports = DeviceReports(session, admission, pc, self._owner, stage)
        port = self._options.data_port
        endpoint = PeerEndpoint(routes, port + number if port else 0)
        probes = ProbeRunner(pc, reports, routes, endpoint, self._step_times, self._budgets)
        return DeviceNode(session, admission, manager, routes, reports, probes)

    def _admission(self, number: int) -> MemberAdmission:
        if number == 0:
            return self._first
        directory = device_dir(self._pc.data_dir, number)
        pair = self._first.pair.for_device(number)
        return MemberAdmission(pair, node_name(self._first.name, number), directory, self._first)

    def _cap_bytes_per_s(self) -> float | None:
        mbps = self._pc.limits.limits.upload_mbps
        return None if mbps is None else mbps * 1e6 / 8
