"""Profile of this PC as the coordinator is told: hardware, caps, measurements together.

What is measured of the PC's line counts for all its devices; what is measured of a device, for one.
Values are cut to what a message may hold before they are sent: a driver that names a card in 300
letters must not keep its PC out.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from molink.control.messages.base import ModelSize
from molink.control.messages.payloads import Device, FormatCost, PathReport, Profile, StepCost
from molink.node.stage_manager import StageManager
from molink_agent.data_files import WEIGHTS_DIR
from molink_agent.limits.assignment_check import Loan
from molink_agent.limits.lent import (
    FREE_MEMORY,
    Lent,
    lent_cache,
    lent_devices,
    lent_disk_bytes,
    nothing_left,
)
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.network.prober import CoordinatorPath
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.machine import Machine, bytes_under, read_machine
from molink_agent.weights.source import Downloaded

STARTED_FILE = "started"

NAME_CHARACTERS_MAX = 100
MBPS_MAX = 100_000.0
RTT_MS_MAX = 60_000.0
DEVICES_MAX = 16
ADDRESSES_MAX = 16
THREADS_MAX = 1024
"""Largest figures that `molink.control.messages.payloads` lets pass."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of the PC's line, or of one device: its addresses and its times."""

    upload_mbps: float = 0.0
    """Upload rate of the line; 0: unknown."""
    download_mbps: float = 0.0
    coordinator_rtt_ms: float | None = None
    nat: str = "unknown"
    addresses: tuple[str, ...] = ()
    """Addresses of the peer service as host:port, best first."""
    clock_offset_s: float = 0.0
    steps: StepCost | None = None
    formats: tuple[FormatCost, ...] = ()


@dataclass(slots=True)
class DeviceStage:
    """The stage of one device node, and the device on which it computes."""

    manager: StageManager
    device: str = ""
    """Empty: the node lends nothing now."""
    offered_bytes: int = 0
    """Bytes of the device's memory, as the coordinator was told last."""
    served: ModelSize | None = None
    """Model that the cluster serves; None: not known yet."""
    download: Downloaded | None = None
    """Download of the stage's weights, while it lasts."""
    times_full: int = 0
    """How often the device was full when the offer was made."""

    @property
    def is_offer_refuted(self) -> bool:
        """Whether the device was full since the coordinator was told last what it may take."""
        return self.manager.times_full > self.times_full


RATES_MAX = 12
"""Neighbours whose rates say what the line carries: as many as a whole round measures."""


@dataclass(slots=True)
class ThisPc:
    """The PC of one agent, however many devices it lends: what it has, lends and has measured."""

    data_dir: Path
    limits: LimitsFile
    gpus: GpuProbe
    measured: Measured
    """Measurements of the PC's line."""
    stages: list[DeviceStage] = field(default_factory=list)
    """Stages by the number of their nodes."""
    lending_pids: frozenset[int] = frozenset()
    """Processes beside them that attend to lent KV on a card."""
    _rates_mbps: dict[str, float] = field(default_factory=dict)
    """Rates as they were last measured to each neighbour."""

    @property
    def busy(self) -> bool:
        """Whether a ring counts on this PC."""
        return any(stage.manager.busy for stage in self.stages)

    @property
    def own_pids(self) -> frozenset[int]:
        """Processes of ours that compute."""
        return self.lending_pids.union(*(stage.manager.pids for stage in self.stages))

    @property
    def devices_in_use(self) -> frozenset[str]:
        """Devices on which our stages are now."""
        handles = (stage.manager.handle for stage in self.stages)
        return frozenset(one.load.work.device for one in handles if one is not None)

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes of each device that our stages hold beside their KV."""
        return {stage.device: stage.manager.weights_bytes for stage in self.stages}

    def upload_caps_changed(self) -> None:
        """Tell the stages what each may upload now."""
        for stage in self.stages:
            stage.manager.limits_changed()

    def lend_cache_ram(self, *, is_lent: bool) -> None:
        """Tell the stages how much main memory each may hold cached KV in now: none while the PC is
        not to be lent."""
        room = lent_cache(self.limits.limits, self.data_dir, len(self.stages)) if is_lent else None
        for stage in self.stages:
            if (handle := stage.manager.handle) is not None:
                handle.set_cache_ram(0 if room is None else room.ram_bytes)

    def lent(self) -> tuple[Lent, ...]:
        """The devices that are lent now."""
        return self._lent(read_machine(self.data_dir))

    def _lent(self, machine: Machine) -> tuple[Lent, ...]:
        report = self.gpus.read(self.own_pids)
        full = {stage.device: stage.manager.times_full for stage in self.stages}
        return lent_devices(self.limits.limits, machine, report, self.held_bytes, full)

    def profile(self, device: str, of_device: Measured) -> Profile:
        """The profile of the node that lends this device, as it is now."""
        machine = read_machine(self.data_dir)
        disk = lent_disk_bytes(self.limits.limits, machine.disk_free_bytes, 0)
        lent = tuple(part for part in self._lent(machine) if part.device == device)
        known = replace(
            self.measured,
            addresses=of_device.addresses,
            steps=of_device.steps,
            formats=of_device.formats,
        )
        return compose_profile(self.limits.limits, machine, lent, known, disk)

    def loan(self, stage: DeviceStage, withheld: str, promised_bytes: int = 0) -> Loan:
        """Loan of a node's device, as it is now. Where free memory is all that bounds it, the last
        offer still counts, or a promise: a plan takes seconds and a download longer, in which free
        memory comes and goes."""
        name = None if stage.served is None else stage.served.name
        part = next((part for part in self.lent() if part.device == stage.device), None)
        if part is None:
            return Loan(model=name, withheld=withheld)
        is_free = part.bound_by == FREE_MEMORY and not stage.is_offer_refuted
        offered = max(stage.offered_bytes, promised_bytes) if is_free else 0
        return Loan(
            device=part.computes_on,
            threads=part.threads,
            memory_bytes=max(part.lent_bytes, offered),
            element_bytes=part.element_bytes,
            model=name,
            withheld=withheld,
        )

    def shortage(self, model: ModelSize, margin: float = 1.0, device: str | None = None) -> str:
        """Why not one layer of the cluster's model fits into this device, or (None) into any that
        is lent; empty when a layer does, and where only other devices are lent. To be asked while
        no stage runs on it: memory that a stage holds counts as taken.
        """
        machine = read_machine(self.data_dir)
        own = bytes_under(self.data_dir / WEIGHTS_DIR)
        disk = lent_disk_bytes(self.limits.limits, machine.disk_free_bytes, own)
        lent = self._lent(machine)
        these = tuple(part for part in lent if device in (None, part.device))
        if lent and not these:
            return ""
        return nothing_left(self.limits.limits, these, disk, model, margin) or ""

    def next_start(self, now_unix_s: float) -> float:
        """Time of the agent's start, as others will compare it: later than ever before, even where
        a clock was set back."""
        path = self.data_dir / STARTED_FILE
        try:
            before = float(path.read_text())
        except (OSError, ValueError):
            before = 0.0
        started_s = max(now_unix_s, before + 1.0)
        with suppress(OSError):
            path.write_text(f"{started_s!r}\n")
        return started_s

    def line_measured(self, **values: Any) -> None:
        """Take new measurements of the line; names as in `Measured`."""
        self.measured = replace(self.measured, **values)

    def paths_measured(
        self, report: PathReport, coordinator: CoordinatorPath | None, own: Collection[str]
    ) -> None:
        """Conclude from measured paths what the line carries: the best rate to anybody, but for the
        `own` nodes; a round is of some of the neighbours. A download that could not be measured now
        is what it was."""
        for path in report.paths:
            self._rates_mbps.pop(path.to, None)
            if path.to not in own:
                self._rates_mbps[path.to] = path.rate_mbps
        while len(self._rates_mbps) > RATES_MAX:
            self._rates_mbps.pop(next(iter(self._rates_mbps)))
        rates = list(self._rates_mbps.values())
        if coordinator is not None:
            rates.append(coordinator.upload_bytes_per_s * 8 / 1e6)
            down = coordinator.download_bytes_per_s * 8 / 1e6
            self.line_measured(
                coordinator_rtt_ms=coordinator.rtt_s * 1e3,
                download_mbps=down or self.measured.download_mbps,
            )
        if rates:
            self.line_measured(upload_mbps=max(rates))


def compose_profile(
    limits: OwnerLimits,
    machine: Machine,
    lent: tuple[Lent, ...],
    measured: Measured,
    disk_bytes: int | None = None,
) -> Profile:
    """Put a profile together; `disk_bytes`: lent for weights, None: all that is free."""
    cap = limits.upload_mbps
    upload = min(measured.upload_mbps, MBPS_MAX)
    rtt = measured.coordinator_rtt_ms
    return Profile(
        devices=tuple(_device(part) for part in lent[:DEVICES_MAX]),
        cpu_threads=machine.cpu_threads,
        memory_bytes=machine.memory_bytes,
        disk_free_bytes=machine.disk_free_bytes if disk_bytes is None else disk_bytes,
        upload_mbps=upload if cap is None else min(upload, cap),
        download_mbps=min(measured.download_mbps, MBPS_MAX),
        upload_cap_mbps=cap,
        coordinator_rtt_ms=None if rtt is None else min(rtt, RTT_MS_MAX),
        nat=measured.nat,
        addresses=measured.addresses[:ADDRESSES_MAX] if limits.direct else (),
        direct=limits.direct,
        clock_offset_s=measured.clock_offset_s,
        steps=measured.steps,
        formats=measured.formats,
    )


def _device(lent: Lent) -> Device:
    kind, _, index = lent.device.partition(":")
    return Device(
        kind="cpu" if kind == "cpu" else "cuda",
        index=int(index or 0),
        name=lent.name[:NAME_CHARACTERS_MAX],
        memory_bytes=lent.total_bytes,
        free_bytes=lent.lent_bytes,
        cap_bytes=lent.lent_bytes if lent.bound_by != FREE_MEMORY else None,
        threads=min(lent.threads, THREADS_MAX),
        element_bytes=4 if lent.element_bytes == 4 else 2,
    )
