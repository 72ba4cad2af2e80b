"""The PC and what is lent of it, as the coordinator is told.

Values are cut to what the message allows before they are sent: a driver that names a card in 300
letters must not keep its PC out.
"""

from dataclasses import dataclass, field

from molink.control.messages.payloads import Device, Profile, StepCost
from molink_agent.limits.lent import Lent
from molink_agent.limits.limits import Limits
from molink_agent.probe.machine import Machine

__all__ = ["Measured", "compose_profile"]

NAME_CHARACTERS_MAX = 100
MBPS_MAX = 100_000.0
RTT_MS_MAX = 60_000.0
DEVICES_MAX = 16
ADDRESSES_MAX = 16
THREADS_MAX = 1024
"""What `molink.control.messages.payloads` lets pass."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What other parts of the agent have found out so far."""

    upload_mbps: float = 0.0
    """0: unknown."""
    download_mbps: float = 0.0
    coordinator_rtt_ms: float | None = None
    nat: str = "unknown"
    addresses: tuple[str, ...] = ()
    """host:port of the peer service, best first."""
    clock_offset_s: float = 0.0
    steps: StepCost | None = field(default=None)


def compose_profile(
    limits: Limits,
    machine: Machine,
    lent: tuple[Lent, ...],
    measured: Measured,
    disk_bytes: int | None = None,
) -> Profile:
    """`disk_bytes`: lent for weights; None: all that is free."""
    cap = limits.upload_mbps
    upload = min(measured.upload_mbps, MBPS_MAX)
    rtt = measured.coordinator_rtt_ms
    return Profile(
        devices=tuple(_device(one) for one in lent[:DEVICES_MAX]),
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
    )


def _device(lent: Lent) -> Device:
    kind, _, index = lent.device.partition(":")
    return Device(
        kind="cpu" if kind == "cpu" else "cuda",
        index=int(index or 0),
        name=lent.name[:NAME_CHARACTERS_MAX],
        memory_bytes=lent.total_bytes,
        free_bytes=lent.lent_bytes,
        cap_bytes=lent.lent_bytes if lent.bound_by != "free memory" else None,
        threads=min(lent.threads, THREADS_MAX),
        element_bytes=4 if lent.element_bytes == 4 else 2,
    )
