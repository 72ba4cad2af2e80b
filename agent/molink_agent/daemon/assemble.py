"""Puts an agent together from its data directory."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.identity import KeyPair
from molink.control.messages import StageWork
from molink.runtime.node.stage_host import StageHost
from molink.runtime.node.voice import NodeVoice
from molink.runtime.stage_handle import StageHandle
from molink.runtime.supervision import LoadStage, OutgoingLink
from molink.runtime.warm_stage import WarmStage
from molink.transport.curve import CurveKeys
from molink_agent.daemon.agent import Agent
from molink_agent.daemon.membership import Membership
from molink_agent.daemon.neighbours import Neighbours
from molink_agent.daemon.options import AgentOptions
from molink_agent.daemon.owner import Owner
from molink_agent.daemon.this_pc import WEIGHTS_DIR, ThisPc
from molink_agent.daemon.ways import RingWays
from molink_agent.limits.lent import lent_disk_bytes
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.use_watch import UseWatch
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.input_idle import input_sources
from molink_agent.probe.machine import disk_free_bytes
from molink_agent.probe.profile import Measured
from molink_agent.probe.wsl import wsl_version
from molink_agent.weights import CoordinatorSource, HubSource, WeightsLimits, ensure_weights

__all__ = ["assemble"]


@dataclass(slots=True)
class _Hands:
    """What a stage host asks of this PC."""

    data_dir: Path
    pair: KeyPair
    membership: Membership
    limits: LimitsFile
    options: AgentOptions
    warm: WarmStage = field(default_factory=WarmStage)

    async def get_weights(self, work: StageWork, report: Callable[[float], None]) -> str:
        """Download what is missing of a stage's layers."""
        weights = work.weights
        token = self.membership.answer.weights_token
        source = CoordinatorSource(weights.url, token) if weights.url else HubSource(weights.model)
        directory = self.data_dir / WEIGHTS_DIR
        free = disk_free_bytes(self.data_dir)
        cap = lent_disk_bytes(self.limits.limits, free, 0) if self.limits.limits.disk_gb else None
        await self.warm.begin(work.threads)
        try:
            path = await ensure_weights(
                source,
                range(*work.layers),
                directory,
                WeightsLimits(disk_bytes_max=cap),
                lambda fraction, rate: report(fraction),
            )
        except BaseException:
            await self.warm.drop()
            raise
        return str(path)

    async def start_stage(
        self, work: StageWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        """Start the stage's process and tell it what to load."""
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

    def upload_bytes_per_s(self) -> float | None:
        """The owner's cap."""
        cap = self.limits.limits.upload_mbps
        return None if cap is None else cap * 1e6 / 8


def assemble(data_dir: Path, pair: KeyPair, membership: Membership) -> Agent:
    """An agent that is not running yet. Raises UserError for files that cannot be read."""
    limits, options = LimitsFile(data_dir), AgentOptions.load(data_dir)
    limits.read()
    hands = _Hands(data_dir, pair, membership, limits, options)
    ways = RingWays(pair.node_id, hands.upload_bytes_per_s)
    ways.stage_host = hands.stage_host
    wsl = wsl_version(os.uname().release) is not None
    gpus = GpuProbe(wsl=wsl)
    pc = ThisPc(data_dir, limits, gpus, Measured(clock_offset_s=membership.clock_offset_s))

    voice = NodeVoice(pair.node_id, membership.name)
    host = StageHost(hands.get_weights, hands.start_stage, ways, voice.say_fact)

    def move(link: OutgoingLink, address: str) -> None:
        if host.handle is not None:
            host.handle.move_path(link, address)

    ways.move = move
    watch = UseWatch(input_sources(os.environ, wsl=wsl), gpus, wsl=wsl)
    owner = Owner(data_dir, limits, watch, lambda: host.pids)
    return Agent(
        membership=membership,
        voice=voice,
        pc=pc,
        owner=owner,
        host=host,
        neighbours=Neighbours(pair.node_id, options, limits, ways),
    )
