"""What this PC is and lends, as the coordinator is told: hardware, caps, measurements together."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from molink.control.messages import ModelSize, PathReport, ProbeOrder, Profile, StepCost
from molink.errors import StageError
from molink_agent.daemon.measuring import StepTimes
from molink_agent.daemon.membership import Membership
from molink_agent.known import Known
from molink_agent.limits.lent import Lent, lent_devices, lent_disk_bytes, nothing_left
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.paths.measure import CoordinatorWay
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.machine import bytes_under, read_machine
from molink_agent.probe.profile import Measured, compose_profile

__all__ = ["WEIGHTS_DIR", "ThisPc"]

STARTED_FILE = "started"
WEIGHTS_DIR = "weights"


@dataclass(slots=True)
class ThisPc:
    """One PC with one agent."""

    data_dir: Path
    limits: LimitsFile
    gpus: GpuProbe
    measured: Measured
    own_pids: frozenset[int] = frozenset()

    def lent(self, own_bytes: int = 0) -> tuple[Lent, ...]:
        """The devices that are lent now; `own_bytes` is what our stage holds already."""
        machine = read_machine(self.data_dir)
        report = self.gpus.read(self.own_pids)
        return lent_devices(self.limits.limits, machine, report, {"cpu": own_bytes})

    def profile(self, own_bytes: int = 0) -> Profile:
        """As it is now."""
        machine = read_machine(self.data_dir)
        disk = lent_disk_bytes(self.limits.limits, machine.disk_free_bytes, 0)
        lent = self.lent(own_bytes)
        return compose_profile(self.limits.limits, machine, lent, self.measured, disk)

    def shortage(self, model: ModelSize, margin: float = 1.0) -> str:
        """Why not one layer of the cluster's model fits into what is lent; empty when one does.

        To be asked while no stage runs: what one holds counts as taken.
        """
        machine = read_machine(self.data_dir)
        own = bytes_under(self.data_dir / WEIGHTS_DIR)
        disk = lent_disk_bytes(self.limits.limits, machine.disk_free_bytes, own)
        lent = lent_devices(self.limits.limits, machine, self.gpus.read(self.own_pids))
        return nothing_left(self.limits.limits, lent, disk, model, margin) or ""

    def next_start(self, now_unix_s: float) -> float:
        """When the agent starts, as others will compare it: later than ever before, even where a
        clock was set back."""
        path = self.data_dir / STARTED_FILE
        try:
            before = float(path.read_text())
        except (OSError, ValueError):
            before = 0.0
        started_s = max(now_unix_s, before + 1.0)
        with suppress(OSError):
            path.write_text(f"{started_s!r}\n")
        return started_s

    async def time_steps(self, order: ProbeOrder) -> StepCost:
        """A layer's times on the first lent device. Raises StageError."""
        lent = await asyncio.to_thread(self.lent)
        if not lent:
            raise StageError("No device is lent: see `molink agent doctor`.")
        first = lent[0]
        return await StepTimes(self.data_dir).of(order, first.device, first.threads)

    def remember(
        self, membership: Membership, profile: Profile, stun_port: int, model: ModelSize | None
    ) -> None:
        """Keep what the doctor may know while the agent does not run."""
        broker = membership.broker
        known = Known(
            broker_host=broker.host,
            broker_port=broker.port,
            coordinator_url=membership.url,
            stun_port=stun_port,
            model=model,
            profile=profile,
        )
        with suppress(OSError):  # A full disk is the doctor's to find, not a reason to stop.
            known.save(self.data_dir)

    def measured_now(self, **news: object) -> None:
        """Something new is known; names as of `probe.profile.Measured`."""
        self.measured = replace(self.measured, **news)  # type: ignore[arg-type]

    def measured_ways(self, report: PathReport, coordinator: CoordinatorWay | None) -> None:
        """How far others are: the best rate to anybody is what the line carries. A download that
        could not be measured now is what it was."""
        rates = [path.rate_mbps for path in report.paths]
        if coordinator is not None:
            rates.append(coordinator.upload_bytes_per_s * 8 / 1e6)
            self.measured_now(coordinator_rtt_ms=coordinator.rtt_s * 1e3)
            down = coordinator.download_bytes_per_s * 8 / 1e6
            self.measured_now(download_mbps=down or self.measured.download_mbps)
        if rates:
            self.measured_now(upload_mbps=max(rates))
