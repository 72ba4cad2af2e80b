"""What really crosses the ring's links, from the kernel's counters.

`sent` is what a stage's kernel handed over on a hop, `received` what the next stage's kernel got
at its far end. What lies between them is inside the emulated link: waiting for the wire, on the
wire, or under way. So the time from one to the other, less the link's own delay, is the queue in
the home router (and the rest of the piece on the wire).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import psutil

from molink.bench.served_ring import ServedRing
from molink.errors import UserError
from molink.tasks import cancel
from tools.experiments.harness.serving import emulator_of
from tools.experiments.harness.tcp_counters import Connection, Counted, TcpCounters

__all__ = ["HopTraffic", "Traffic", "busiest_second", "queueing_s", "watching"]

PERIOD_S = 0.010


@dataclass(slots=True)
class HopTraffic:
    """Counters of one stage's link to the next stage."""

    source: str
    sender: Connection
    receiver: Connection
    upload: list[Connection]
    """All connections of the sending process: what the node uploads."""
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    uploaded: list[int] = field(default_factory=list)

    def note(self, counted: dict[Connection, Counted]) -> None:
        """Take one answer of the kernel."""
        self.sent.append(counted[self.sender].sent_bytes)
        self.received.append(counted[self.receiver].received_bytes)
        self.uploaded.append(sum(counted[one].sent_bytes for one in self.upload if one in counted))


@dataclass(slots=True)
class Traffic:
    """Counters of all hops between stages over time."""

    hops: list[HopTraffic]
    times_s: list[float] = field(default_factory=list)


@asynccontextmanager
async def watching(ring: ServedRing) -> AsyncIterator[Traffic]:
    """Count in the background until the block is left."""
    traffic = Traffic(await _hops(ring))
    with TcpCounters() as counters:
        task = asyncio.create_task(_count(traffic, counters))
        try:
            yield traffic
        finally:
            await cancel(task)


async def _count(traffic: Traffic, counters: TcpCounters) -> None:
    while True:
        counted = counters.now()
        now_s = time.perf_counter()
        for hop in traffic.hops:
            hop.note(counted)
        traffic.times_s.append(now_s)
        await asyncio.sleep(PERIOD_S)


async def _hops(ring: ServedRing) -> list[HopTraffic]:
    """Those between neighbours, but not the tail's, which carries tokens only."""
    stages = [(s["node"], psutil.Process(s["pid"])) for s in (await ring.cluster())["stages"]]
    emulated = _listening(emulator_of(ring))
    return [_hop(*source, target, emulated) for source, (_, target) in pairwise(stages)]


def _hop(
    name: str, source: psutil.Process, target: psutil.Process, emulated: set[int]
) -> HopTraffic:
    outgoing, listening = _connections(source), _listening(target)
    sender = [one for one in outgoing if one[1] in emulated]
    receiver = [one for one in _connections(target) if one[0] in listening]
    if len(sender) != 1 or len(receiver) != 1:
        raise UserError(f"the connections of {name} are not as expected: {sender}, {receiver}")
    return HopTraffic(name, sender[0], receiver[0], outgoing)


def _connections(process: psutil.Process) -> list[Connection]:
    return [(s.laddr.port, s.raddr.port) for s in _sockets(process) if s.raddr]


def _listening(process: psutil.Process) -> set[int]:
    return {s.laddr.port for s in _sockets(process) if s.status == psutil.CONN_LISTEN}


def _sockets(process: psutil.Process) -> list[Any]:
    return list(process.net_connections(kind="tcp4"))


def queueing_s(
    times_s: Sequence[float], sent: Sequence[int], received: Sequence[int], one_way_s: float
) -> list[tuple[float, float]]:
    """(when, how long over `one_way_s` until all that was sent by then had arrived).

    So it is what one more byte would have waited, at every moment of the record and not only when
    something was sent: a burst counts for as long as its queue stands. What has not arrived when
    the record ends is left out.
    """
    times, out, back = (np.asarray(one, dtype=float) for one in (times_s, sent, received))
    times, out = times[out <= back[-1]], out[out <= back[-1]]
    after = np.searchsorted(back, out)
    before = np.maximum(after - 1, 0)
    all_times = np.asarray(times_s, dtype=float)
    arrived = (all_times[before] + all_times[after]) / 2
    delays = np.maximum(arrived - times - one_way_s, 0.0)
    return [(float(at), float(delay)) for at, delay in zip(times, delays, strict=True)]


def busiest_second(times_s: Sequence[float], sent: Sequence[int]) -> float:
    """The most bytes within any one second, wherever it begins; 0 when there is no whole one."""
    times, out = np.asarray(times_s, dtype=float), np.asarray(sent, dtype=float)
    begins = times[times + 1.0 <= times[-1]]
    if not len(begins):
        return 0.0
    return float(np.max(np.interp(begins + 1.0, times, out) - out[: len(begins)]))
