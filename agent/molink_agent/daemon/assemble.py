"""Puts an agent together from its data directory: what the PC has once, and each seat's parts."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from molink.control.identity import KeyPair
from molink.control.messages.payloads import StageWork
from molink.control.messages.topics import PATHS
from molink.node.control_session import ControlSession
from molink.node.stage_handle import StageHandle
from molink.node.stage_manager import StageManager
from molink.node.warm_stage import WarmStage
from molink.stage_protocol.messages import LoadStage
from molink.transport.curve import CurveKeys
from molink_agent.daemon.admission import Admission
from molink_agent.daemon.agent import Agent
from molink_agent.daemon.household import Household
from molink_agent.daemon.membership import SEATS_DIR, Membership
from molink_agent.daemon.neighbours import Neighbours
from molink_agent.daemon.options import AgentOptions
from molink_agent.daemon.owner import Owner
from molink_agent.daemon.probe_errand import ProbeErrand
from molink_agent.daemon.router_ports import RouterPorts
from molink_agent.daemon.seat import Seat
from molink_agent.daemon.shelf import Shelf
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.daemon.ways import RelayedRoutes
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.use_watch import UseWatch
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.input_idle import input_sources
from molink_agent.probe.profile import Measured
from molink_agent.probe.visible_cards import VISIBLE_VARIABLE
from molink_agent.probe.wsl import wsl_version

__all__ = ["assemble", "seat_name"]

NAME_CHARACTERS_MAX = 60
"""Of a node, as messages allow."""


def seat_name(pc: str, number: int) -> str:
    """For people: the PC's own name, of its second device "NAME (2)"."""
    ending = f" ({number + 1})" if number else ""
    return pc[: NAME_CHARACTERS_MAX - len(ending)] + ending


@dataclass(slots=True)
class _StageLauncher:
    """Starter of one seat's stages on this PC."""

    number: int
    pair: KeyPair
    admission: Admission
    limits: LimitsFile
    options: AgentOptions
    shelf: Shelf
    warm: WarmStage = field(default_factory=WarmStage)

    async def prepare(self, work: StageWork, report: Callable[[float], None]) -> str:
        """Start the stage's process, and download meanwhile what is missing of its layers."""
        membership = self.admission.kept
        assert membership is not None, "only a member is assigned layers"
        await self.warm.begin(work.threads)
        try:
            return await self.shelf.get(self.number, membership.answer.weights_token, work, report)
        except BaseException:
            await self.warm.drop()
            raise

    async def start(self, work: StageWork, directory: str, allowed: tuple[str, ...]) -> StageHandle:
        """Tell the process what to load."""
        load = LoadStage(
            model=directory,
            layers=work.layers,
            device=work.device,
            dtype=work.dtype,
            threads=work.threads,
            kv_tokens=work.kv_tokens,
            address=self.options.listen if self.limits.limits.direct else "127.0.0.1",
            keys=CurveKeys(self.pair.public_z85, self.pair.secret_z85, allowed),
        )
        return await self.warm.start("This PC's stage", load)

    def stage_host(self) -> str:
        """Where this PC itself reaches what it listens at."""
        everywhere = self.options.listen == "0.0.0.0" or not self.limits.limits.direct
        return "127.0.0.1" if everywhere else self.options.listen


@dataclass(slots=True)
class _Carpenter:
    """Makes seats of what the PC has once."""

    data_dir: Path
    pair: KeyPair
    """The PC's."""
    limits: LimitsFile
    options: AgentOptions
    pc: ThisPc
    owner: Owner
    ports: RouterPorts
    household: Household
    shelf: Shelf
    first: Admission

    def seat(self, number: int) -> Seat:
        """Not running yet."""
        admission = self._admission(number)
        pair = admission.pair
        self.household.enter(pair.node_id)
        launcher = _StageLauncher(number, pair, admission, self.limits, self.options, self.shelf)
        ways = RelayedRoutes(pair.node_id, self.household)
        ways.stage_host = launcher.stage_host
        voice = ControlSession(pair.node_id, admission.name)
        host = StageManager(launcher, ways, voice.say_fact)
        errand = self._errand(number, ways)
        seat = Seat(number, voice, admission, self.pc, self.owner, host, errand)
        errand.say_profile, errand.say_paths = seat.say_profile, partial(voice.say, PATHS)
        return seat

    def _admission(self, number: int) -> Admission:
        if number == 0:
            return self.first
        directory = self.data_dir / SEATS_DIR / str(number)
        name = seat_name(self.first.name, number)
        return Admission(self.pair.for_device(number), name, directory, self.first.pc)

    def _errand(self, number: int, ways: RelayedRoutes) -> ProbeErrand:
        port = self.options.data_port
        options = replace(self.options, data_port=port + number if port else 0)
        neighbours = Neighbours(
            ways.node_id, options, self.limits, ways, self.ports, self.household
        )
        return ProbeErrand(self.pc, self.household, neighbours, lambda: self.first.pc().url)


def assemble(data_dir: Path, pair: KeyPair, membership: Membership) -> Agent:
    """An agent that is not running yet. Raises UserError for files that cannot be read."""
    limits, options = LimitsFile(data_dir), AgentOptions.load(data_dir)
    limits.read()
    wsl = wsl_version(os.uname().release) is not None
    gpus = GpuProbe(wsl=wsl, visible=os.environ.get(VISIBLE_VARIABLE))
    pc = ThisPc(data_dir, limits, gpus, Measured(clock_offset_s=membership.clock_offset_s))
    watch = UseWatch(input_sources(os.environ, wsl=wsl), gpus, wsl=wsl)
    owner = Owner(data_dir, limits, watch, lambda: agent.pids)
    ports = RouterPorts(lambda: options.map_ports and limits.limits.direct)
    household = Household(lambda: _bytes_per_s(limits.limits.upload_mbps))
    shelf = Shelf(data_dir, limits)
    first = Admission(pair, membership.name, data_dir, lambda: first.kept or membership, membership)
    carpenter = _Carpenter(
        data_dir, pair, limits, options, pc, owner, ports, household, shelf, first
    )
    agent = Agent(pc, owner, ports, carpenter.seat)
    household.cap_changed = agent.cap_changed
    shelf.is_busy = lambda seat: agent.seats[seat].host.busy
    pc.held_bytes, pc.own_pids = lambda: agent.held_bytes, lambda: agent.pids
    return agent


def _bytes_per_s(mbps: float | None) -> float | None:
    return None if mbps is None else mbps * 1e6 / 8
