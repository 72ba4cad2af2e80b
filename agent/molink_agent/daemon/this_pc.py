"""What this PC is and lends, as the coordinator is told: hardware, caps, measurements together.

What is measured of the PC's line counts for all its seats; what is measured of a device, for one.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from molink.control.messages.payloads import ModelSize, PathReport, ProbeOrder, Profile, StepCost
from molink.errors import StageError
from molink_agent.daemon.measuring import StepTimes
from molink_agent.daemon.membership import Membership
from molink_agent.data_files import Known
from molink_agent.limits.lent import Lent, lent_devices, lent_disk_bytes, nothing_left
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.network.prober import CoordinatorWay
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.machine import bytes_under, read_machine
from molink_agent.probe.profile import Measured, compose_profile

__all__ = ["WEIGHTS_DIR", "ThisPc"]

STARTED_FILE = "started"
WEIGHTS_DIR = "weights"


@dataclass(slots=True)
class ThisPc:
    """One PC with one agent, however many devices it lends."""

    data_dir: Path
    limits: LimitsFile
    gpus: GpuProbe
    measured: Measured
    """Of the line; what is of one device comes from its seat."""
    held_bytes: Callable[[], Mapping[str, int]] = field(default=dict)
    """What our stages hold already, by device."""
    own_pids: Callable[[], frozenset[int]] = field(default=frozenset)
    """Of our stages."""
    timing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a layer is timed: two at once would each find half of the PC."""

    def lent(self) -> tuple[Lent, ...]:
        """The devices that are lent now."""
        machine = read_machine(self.data_dir)
        report = self.gpus.read(self.own_pids())
        return lent_devices(self.limits.limits, machine, report, self.held_bytes())

    def profile(self, device: str, of_seat: Measured) -> Profile:
        """Of the seat that lends this device, as it is now; `of_seat` has its addresses and step
        times."""
        machine = read_machine(self.data_dir)
        disk = lent_disk_bytes(self.limits.limits, machine.disk_free_bytes, 0)
        lent = tuple(one for one in self.lent() if one.device == device)
        known = replace(self.measured, addresses=of_seat.addresses, steps=of_seat.steps)
        return compose_profile(self.limits.limits, machine, lent, known, disk)

    def shortage(self, model: ModelSize, margin: float = 1.0, device: str | None = None) -> str:
        """Why not one layer of the cluster's model fits into this device, or (None) into any that
        is lent; empty when one does, and where only other devices are lent.

        To be asked while no stage runs on it: what one holds counts as taken.
        """
        machine = read_machine(self.data_dir)
        own = bytes_under(self.data_dir / WEIGHTS_DIR)
        disk = lent_disk_bytes(self.limits.limits, machine.disk_free_bytes, own)
        lent = self.lent()
        these = tuple(one for one in lent if device in (None, one.device))
        if lent and not these:
            return ""
        return nothing_left(self.limits.limits, these, disk, model, margin) or ""

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

    async def time_steps(self, order: ProbeOrder, device: str) -> StepCost:
        """A layer's times on a lent device. Raises StageError."""
        lent = {one.device: one for one in await asyncio.to_thread(self.lent)}
        if device not in lent:
            raise StageError("No device is lent: see `molink agent doctor`.")
        one = lent[device]
        async with self.timing:
            return await StepTimes(self.data_dir).of(order, one.computes_on, one.threads)

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
        """Something new is known of the line; names as of `probe.profile.Measured`."""
        self.measured = replace(self.measured, **news)  # type: ignore[arg-type]

    def measured_ways(
        self, report: PathReport, coordinator: CoordinatorWay | None, own: Collection[str]
    ) -> None:
        """How far others are: the best rate to anybody is what the line carries; `own` seats are
        not behind it. A download that could not be measured now is what it was."""
        rates = [path.rate_mbps for path in report.paths if path.to not in own]
        if coordinator is not None:
            rates.append(coordinator.upload_bytes_per_s * 8 / 1e6)
            self.measured_now(coordinator_rtt_ms=coordinator.rtt_s * 1e3)
            down = coordinator.download_bytes_per_s * 8 / 1e6
            self.measured_now(download_mbps=down or self.measured.download_mbps)
        if rates:
            self.measured_now(upload_mbps=max(rates))
