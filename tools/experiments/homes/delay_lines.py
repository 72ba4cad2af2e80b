"""The lines between homes, as a process: what a home sends leaves through its own slow upload.

    python -m tools.experiments.homes.delay_lines MBPS:MS QUEUE_BYTES STAGES CONGESTION

Makes the homes, prints a line `ready`, and forwards packets. Each line that it reads from standard
input is answered with the packets lost so far; when the input closes it ends, and the homes with
it. Root only. The kernel's own delay (netem) is not built into every kernel; TUN is.

At a thousand packets a second waking up for each is what costs, so the process looks at most every
half millisecond and then handles all that is there; packets are handed over up to half of that
early, so that on average they are in time.
"""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from molink.config.link_shape import LinkShape
from tools.experiments.homes.home_network import HomeNetwork, open_tun, run_ip
from tools.experiments.homes.packet_line import PacketLine

__all__ = ["DelayLines", "main"]

PAUSE_S = 0.0005
"""Between two looks: under 2 % of the delay of a home link."""

IDLE_S = 1.0
PACKETS_AT_ONCE = 64
"""From one device before the others get their turn."""

PACKET_BYTES_MAX = 2048
HIGH_PRIORITY = -10
"""A line that waits for a core would be a longer line."""

VERSION = 4
DESTINATION = slice(16, 20)
"""In an IPv4 header; what else a kernel sends is not for the other homes."""


class DelayLines:
    """Forwards between devices; `uploads` and `doors` are by descriptor and by address."""

    def __init__(self, shape: LinkShape, devices: dict[str, int]) -> None:
        self._uploads = {device: PacketLine(shape) for device in devices.values()}
        self._doors = {socket.inet_aton(address): device for address, device in devices.items()}

    @property
    def dropped_count(self) -> int:
        """Packets lost in all queues so far."""
        return sum(line.dropped_count for line in self._uploads.values())

    def forward(self, control: int) -> None:
        """Until `control`, a descriptor, can be read."""
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
                line.offer(os.read(device, PACKET_BYTES_MAX), now_s)
        except BlockingIOError:
            return

    def _hand_over(self, until_s: float) -> None:
        for line in self._uploads.values():
            for packet in line.arrived(until_s):
                door = self._doors.get(packet[DESTINATION])
                if door is not None and packet[0] >> 4 == VERSION:
                    self._write(door, packet)

    @staticmethod
    def _write(door: int, packet: bytes) -> None:
        try:
            os.write(door, packet)
        except OSError:
            return  # A home that goes away loses its packets.


@contextmanager
def _homes(network: HomeNetwork, congestion: str) -> Iterator[dict[str, int]]:
    """Make them; yields the descriptor of each address."""
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
    """Forward, and answer each line of input, until it closes."""
    print("ready", flush=True)
    lines.forward(sys.stdin.fileno())
    while os.read(sys.stdin.fileno(), PACKET_BYTES_MAX):
        print(lines.dropped_count, flush=True)
        lines.forward(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
