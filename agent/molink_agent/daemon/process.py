"""An agent's process: one for each data directory, wired here, with its socket."""

import asyncio
import logging
import os
import time
from functools import partial
from pathlib import Path

from molink.config.data_dir import only_one
from molink.control.identity import KeyPair
from molink.errors import UserError
from molink.node.control_session import ControlSession
from molink.node.stage_manager import StageManager
from molink.tasks import background_tasks
from molink.transport.paths.reach import Reach
from molink_agent.daemon.agent import Agent, LeftError
from molink_agent.daemon.agent_log import StatusListener, logged
from molink_agent.daemon.cell_member import CellMember
from molink_agent.daemon.device_node import DeviceNode
from molink_agent.daemon.given import GivenRecorder, Totals, ask_totals
from molink_agent.daemon.lenders.device_lender import CardLender, DeviceLender
from molink_agent.daemon.measurements import Budgets, PeerEndpoint, ProbeRunner
from molink_agent.daemon.membership import (
    MemberAdmission,
    Membership,
    device_dir,
    forget_membership,
)
from molink_agent.daemon.reports import DeviceReports
from molink_agent.daemon.routes import ListenAddress, RelayedRoutes
from molink_agent.daemon.stage_launcher import AgentStageLauncher, WeightsCache
from molink_agent.daemon.status import answer_owner, status_of
from molink_agent.daemon.step_times import KeptStepTimes
from molink_agent.daemon.this_pc import DeviceStage, Measured, ThisPc
from molink_agent.data_files import AgentOptions
from molink_agent.limits.game_watch import GameWatch
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.owner_policy import OwnerPolicy, UseWatch
from molink_agent.local_socket import SOCKET_NAME, answering
from molink_agent.network.port_mapping import PortMapper
from molink_agent.network.shared_line import LocalPorts, SharedUplink
from molink_agent.probe.full_screen import FullScreenProbe
from molink_agent.probe.gpus import VISIBLE_VARIABLE, GpuProbe
from molink_agent.probe.input_idle import input_sources
from molink_agent.probe.machine import wsl_version
from molink_agent.status_text import StatusNews, now_sentence

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
        cell = self._cell_member() if number == 0 else None
        return DeviceNode(session, admission, manager, routes, reports, probes, cell)

    def _cell_member(self) -> CellMember:
        address, started = self._listen_address, int(1e3 * self._started_unix_s)

        def bind() -> str:
            return address.host

        ram = DeviceLender(self._owner, bind, started)
        card = CardLender(self._owner, bind, started)
        return CellMember(self._pc, ram, card, lambda: address.local_host)

    def _admission(self, number: int) -> MemberAdmission:
        if number == 0:
            return self._first
        directory = device_dir(self._pc.data_dir, number)
        pair = self._first.pair.for_device(number)
        return MemberAdmission(pair, node_name(self._first.name, number), directory, self._first)

    def _cap_bytes_per_s(self) -> float | None:
        mbps = self._pc.limits.limits.upload_mbps
        return None if mbps is None else mbps * 1e6 / 8
