"""The lines between homes, as a process: what a home sends leaves through its own slow upload.

    python -m tools.experiments.homes.delay_lines MBPS:MS QUEUE_BYTES STAGES CONGESTION

Makes the homes, prints a line `ready`, and forwards packets. Each line that it reads from standard
input is an order (`line_faults`), an empty one too, and is answered with the packets that found a
queue full so far; when the input closes it ends, and the homes with it. Root only. The kernel's own
delay (netem) is not built into every kernel; TUN is.

At a thousand packets a second waking up for each is what costs, so the process wakes at most every
half millisecond and then handles all that is there; packets are handed over up to half of that
early, so that on average they are in time.
"""

import gc
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NoReturn

from molink.config.link_schedule import LinkShape
from tools.experiments.homes.home_network import HomeNetwork, open_tun, run_ip
from tools.experiments.homes.line_faults import LineFaults

__all__ = ["DelayLines", "PacketLine", "main"]

PAUSE_S = 0.0005
"""Pause between two rounds: under 2 % of the delay of a home link."""

IDLE_S = 1.0
PACKETS_AT_ONCE = 64
"""From one device before the others get their turn."""

PACKET_BYTES_MAX = 2048
HIGH_PRIORITY = -10
"""A line that waits for a core would be a longer line."""

VERSION = 4
DESTINATION = slice(16, 20)
"""In an IPv4 header; what else a kernel sends is not for the other homes."""


@dataclass(slots=True)
class PacketLine:
    """A home's upload as a queue of packets: one byte after the other at a rate, then a delay.

    What does not fit into the queue is lost, as in a router, so that whatever sends packets learns
    of a full link the way it does at home. (The emulator of `--link` carries bytes and holds back
    what does not fit.) Pure: times come from the caller, in seconds of any one clock.
    """

    shape: LinkShape
    dropped_count: int = 0
    """Packets that found the queue full."""
    _wire_free_s: float = 0.0
    _under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    """(when it arrives, packet), in order."""

    def offer(self, packet: bytes, now_s: float, late_s: float = 0.0) -> bool:
        """Take a packet behind those that wait; False when it is lost.

        The packet on the wire counts as waiting with what is left of it. One that is late holds up
        those behind it.
        """
        begins_s = max(self._wire_free_s, now_s)
        rate = self.shape.bytes_per_s
        if (begins_s - now_s) * rate + len(packet) > self.shape.queue_bytes:
            self.dropped_count += 1
            return False
        self._wire_free_s = begins_s + len(packet) / rate
        arrives_s = self._wire_free_s + self.shape.one_way_s + late_s
        if self._under_way:
            arrives_s = max(arrives_s, self._under_way[-1][0])
        self._under_way.append((arrives_s, packet))
        return True

    def arrived(self, now_s: float) -> Iterator[bytes]:
        """Packets that have come out by now, in order; each is handed out once."""
        under_way = self._under_way
        while under_way and under_way[0][0] <= now_s:
            yield under_way.popleft()[1]

    @property
    def next_arrival_s(self) -> float:
        """When the next packet comes out; infinite when none is under way."""
        return self._under_way[0][0] if self._under_way else math.inf


class DelayLines:
    """Forwarder of packets between the homes' devices, each with an upload line of its own."""

    def __init__(self, shape: LinkShape, devices: dict[str, int]) -> None:
        self._uploads = {device: PacketLine(shape) for device in devices.values()}
        self._devices = {socket.inet_aton(address): device for address, device in devices.items()}
        self.faults = LineFaults(Random(0))

    @property
    def dropped_count(self) -> int:
        """Packets lost in all queues so far."""
        return sum(line.dropped_count for line in self._uploads.values())

    def forward(self, control: int) -> None:
        """Forward until `control`, a descriptor, can be read."""
        watched = [control, *self._uploads]
        while True:
            readable = select.select(watched, [], [], self._wait_s())[0]
            if control in readable:
                return
            for device in readable:
                self._take(device, time.monotonic())
            self._hand_over(time.monotonic() + PAUSE_S / 2)
            time.sleep(PAUSE_S)

    def _wait_s(self) -> float:
        """Until the next packet arrives somewhere."""
        next_s = min(line.next_arrival_s for line in self._uploads.values())
        return min(max(0.0, next_s - PAUSE_S / 2 - time.monotonic()), IDLE_S)

    def _take(self, device: int, now_s: float) -> None:
        line = self._uploads[device]
        try:
            for _ in range(PACKETS_AT_ONCE):
                packet = self.faults.passed(os.read(device, PACKET_BYTES_MAX), now_s)
                if packet is not None:
                    line.offer(packet, now_s, self.faults.late_s(packet, now_s))
        except BlockingIOError:
            return

    def _hand_over(self, until_s: float) -> None:
        for line in self._uploads.values():
            for packet in line.arrived(until_s):
                device = self._devices.get(packet[DESTINATION])
                if device is not None and packet[0] >> 4 == VERSION:
                    self._write(device, packet)

    @staticmethod
    def _write(device: int, packet: bytes) -> None:
        try:
            os.write(device, packet)
        except OSError:
            return  # A home that goes away loses its packets.


@contextmanager
def _homes(network: HomeNetwork, congestion: str) -> Iterator[dict[str, int]]:
    """Make the homes; yields the descriptor of each address."""
    try:
        devices = {home.address: open_tun(home.device) for home in network.homes}
        run_ip(network.set_up_commands(congestion))
        yield devices
    finally:
        network.tear_down()


def _ended(signal_number: int, frame: object) -> NoReturn:
    sys.exit(128 + signal_number)


def main(arguments: Sequence[str]) -> None:
    """`MBPS:MS QUEUE_BYTES STAGES CONGESTION`: forward until standard input closes."""
    link, queue_bytes, stages, congestion = arguments
    plain = LinkShape.parse(link)
    shape = LinkShape(plain.rate_mbps, plain.one_way_ms, int(queue_bytes))
    signal.signal(signal.SIGTERM, _ended)
    os.setpriority(os.PRIO_PROCESS, 0, HIGH_PRIORITY)
    gc.disable()  # Packets make no cycles.
    try:
        with _homes(HomeNetwork.of(os.getpid(), int(stages)), congestion) as devices:
            _serve(DelayLines(shape, devices))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The lines between homes cannot be made: {error}")


def _serve(lines: DelayLines) -> None:
    """Forward, and take and answer each line of input, until it closes."""
    print("ready", flush=True)
    lines.forward(sys.stdin.fileno())
    while order := os.read(sys.stdin.fileno(), PACKET_BYTES_MAX):
        lines.faults.order(order.decode())
        print(lines.dropped_count, flush=True)
        lines.forward(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
