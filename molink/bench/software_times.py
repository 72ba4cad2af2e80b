"""Software times of a hop on this PC, between two steps of a ring.

*A message*: decode from one link's `send` to the other end's inbox through the emulator, beyond the
emulator's delay and the time on its wire. It waits a little between two tries, as a ring does:
whatever sleeps must be woken, and that is most of it. *A chunk*: the time of a core that the
threads at both ends and the emulator spend on it while a link is full of prompts; stages that
compute on the same cores have to do without.
"""

import json
import queue
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import zmq

from molink.config.link_schedule import LinkSchedule
from molink.errors import UserError
from molink.transport.link.inbound import ArrivedMessage, InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import LinkThread
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues

EMULATOR = "molink.transport.emulator"
LINK = LinkSchedule.parse("20:10")
OPEN_TIMEOUT_S = 10.0

HEADER_BYTES, ROW_BYTES = 80, 1536
"""A decode row of the benchmark model; six times as many bytes cost nothing more."""

TRIES = 40
PAUSE_S = 0.05
"""Pause, about what passes between two steps on a stage that serves one user."""

FULL_S, FILLERS_WAITING, POLL_S = 2.0, 4, 0.04
"""How long the link is kept full, by how many fillers that wait, and how often they are counted:
seldom, since that costs time of the same core. Four fillers last longer than it at 20 Mbps."""

ARRIVES_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Costs of the software of one hop."""

    hop_s: float
    """Mean seconds of a decode message beyond delay and wire."""
    chunk_s: float
    """Seconds of a core for each chunk: both ends, the acknowledgement, the emulator."""


def hop_times() -> HopTimes:
    """Measure a link between two threads of this process. Raises UserError when nothing arrives."""
    inbox: queue.SimpleQueue[ArrivedMessage] = queue.SimpleQueue()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbound = InboundLink.bind(context, "127.0.0.1")
    receiving, sending = LinkThread([inbound], inbox.put), LinkThread([], lambda frames: None)
    command = [sys.executable, "-m", EMULATOR, LINK.text, f"127.0.0.1:{inbound.port}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as emulator:
        try:
            receiving.start()
            sending.start()
            assert emulator.stdout is not None
            port = json.loads(emulator.stdout.readline())["ports"][0]
            link = _connect(context, port)
            if not sending.open(link, OPEN_TIMEOUT_S):
                raise UserError("the emulated link to be measured does not answer.")
            message_s = statistics.fmean(_one_hop_s(link, sending, inbox) for _ in range(TRIES))
            return HopTimes(message_s, _chunk_s(link, sending, inbound, emulator.pid))
        finally:
            emulator.kill()
            sending.stop()
            receiving.stop()
            context.destroy(linger=0)


def _chunk_s(link: PacedLink, thread: LinkThread, inbound: InboundLink, emulator: int) -> float:
    """Keep the link full for a while; count chunks, and the processes' time."""

    def cpu_s() -> float:
        times = psutil.Process(emulator).cpu_times()
        return time.process_time() + times.user + times.system

    began, before_s, before = time.perf_counter(), cpu_s(), inbound.messages_received
    while time.perf_counter() < began + FULL_S:
        while link.transfers_waiting < FILLERS_WAITING:
            link.fill()
        thread.wake()
        time.sleep(POLL_S)
    return (cpu_s() - before_s) / (inbound.messages_received - before)


def _connect(context: "zmq.Context[zmq.Socket[bytes]]", port: int) -> PacedLink:
    address = f"tcp://127.0.0.1:{port}"
    return PacedLink.connect(context, "measured", address, PriorityQueues(), LinkPacer())


def _one_hop_s(
    link: PacedLink, thread: LinkThread, inbox: "queue.SimpleQueue[ArrivedMessage]"
) -> float:
    time.sleep(PAUSE_S)
    shape = LINK.steps[0].shape
    known_s = shape.one_way_s + (HEADER_BYTES + ROW_BYTES) / shape.bytes_per_s
    began = time.perf_counter()
    if not link.send((bytes(HEADER_BYTES), bytes(ROW_BYTES)), BatchClass.DECODE):
        thread.wake()
    try:
        arrived = inbox.get(timeout=ARRIVES_WITHIN_S)
    except queue.Empty:
        raise UserError("a message over the emulated link to be measured was lost.") from None
    took_s = time.perf_counter() - began
    if arrived.link.taken(arrived):
        thread.wake()
    return took_s - known_s
