"""Makes loopback feel like home links: a TCP proxy per hop with a rate, a delay and a bounded
queue.

Runs as a process of its own, `python -m molink.transport.emulator RATE_MBPS:ONE_WAY_MS
host:port...`, prints one line of JSON with the ports that stand for the targets, and ends when
its standard input closes. All connections through one port share the link, each direction on
its own. It ends TCP on both sides, so neither loss nor congestion control is emulated. The
event loop uses select(): epoll rounds every timer up to a full millisecond, which would be
added to each hop of each token.
"""

import asyncio
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from molink.config.link_schedule import LinkSchedule

PIECE_BYTES = 16384
"""Bytes read at a time: 1.3 ms of a 100 Mbps wire, so that no read holds a decode step up."""

STARTED_AT = time.monotonic()
"""Zero of the schedule; the event loop's clock is the same."""


@dataclass(slots=True)
class ShapedPipe:
    """Direction of an emulated link, as arithmetic: rate, delay and bounded queue.

    The line carries one byte after the other at the schedule's rate, then each is delayed; bytes
    that wait for the line are the router's queue. Pure, so that its numbers can be tested without a
    clock: times are seconds since the emulator started.
    """

    schedule: LinkSchedule
    _line_free_at: float = field(init=False, default=0.0)
    _last_delivery_at: float = field(init=False, default=0.0)
    bytes_total: int = field(init=False, default=0)

    def deliver_at(self, size: int, now: float) -> float:
        """Time at which `size` bytes handed over `now` have arrived: behind what waits, at the
        rate, delayed.

        Never before what was handed over earlier, even where the delay shrinks.
        """
        self._line_free_at = self.schedule.wire_done_at(max(self._line_free_at, now), size)
        delay_s = self.schedule.step_at(self._line_free_at).one_way_s
        self._last_delivery_at = max(self._last_delivery_at, self._line_free_at + delay_s)
        self.bytes_total += size
        return self._last_delivery_at

    def queued_bytes(self, now: float) -> float:
        """Bytes that wait for the line, at the present rate."""
        return max(0.0, self._line_free_at - now) * self.schedule.step_at(now).bytes_per_s

    def wait_s(self, now: float) -> float:
        """How long until the queue is below its limit; 0 when there is room."""
        shape = self.schedule.step_at(now)
        excess_bytes = self.queued_bytes(now) - shape.queue_bytes
        return max(0.0, excess_bytes / shape.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Target:
    """Address to which a hop really leads."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Target":
        """A target from the text `host:port`."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: ShapedPipe
) -> None:
    """Carry one direction of one connection until its sender closes, or an end is killed."""
    loop = asyncio.get_running_loop()
    last_at = loop.time()
    with suppress(ConnectionError):
        while piece := await reader.read(PIECE_BYTES):
            last_at = STARTED_AT + pipe.deliver_at(len(piece), loop.time() - STARTED_AT)
            loop.call_at(last_at, _write, writer, piece)
            await writer.drain()
            if wait_s := pipe.wait_s(loop.time() - STARTED_AT):
                await asyncio.sleep(wait_s)
    loop.call_at(last_at, writer.close)


def _write(writer: asyncio.StreamWriter, piece: bytes) -> None:
    if not writer.is_closing():
        writer.write(piece)


async def _listen(target: Target, schedule: LinkSchedule) -> asyncio.Server:
    there, back = ShapedPipe(schedule), ShapedPipe(schedule)
    carried: set[asyncio.Future[Any]] = set()
    """The event loop itself holds what waits for an open connection only weakly."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(target.host, target.port)
        except OSError:
            writer.close()
            return
        _set_no_delay(writer)
        _set_no_delay(far_writer)
        pumps = (_pump(reader, far_writer, there), _pump(far_reader, writer, back))
        both = asyncio.gather(*pumps, return_exceptions=True)
        carried.add(both)
        both.add_done_callback(carried.discard)
        await both

    return await asyncio.start_server(connected, "127.0.0.1", 0)


def _set_no_delay(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _serve(schedule: LinkSchedule, targets: Sequence[Target]) -> None:
    servers = [await _listen(target, schedule) for target in targets]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps({"ports": ports}), flush=True)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await reader.read()
    os._exit(0)  # Nothing here is worth closing in order, and open pumps would complain.


def main(arguments: Sequence[str]) -> None:
    """`SCHEDULE host:port...`: emulate until standard input closes."""
    schedule = LinkSchedule.from_text(arguments[0])
    targets = [Target.parse(text) for text in arguments[1:]]
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_serve(schedule, targets))


if __name__ == "__main__":
    main(sys.argv[1:])
