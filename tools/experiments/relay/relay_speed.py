"""What does a relay add to a link, how much can it carry, and what does it cost?

    python -m tools.experiments.relay.relay_speed --out DIR

Two ZeroMQ sockets with CURVE, as a link has them, in this process; between them nothing but
loopback, or the tunnel of one agent, `molink relay` and the receiver of another agent, a process
each. Paths are measured in turn, several rounds; figures are medians. Latency is one way, of one
message at a time. Processor time is what the kernel has booked on the processes while messages came
at a steady rate.
"""

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import zmq

from molink.control.private_file import write_private
from molink.transport.relay.protocol import relay_token
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    experiment,
    figures_of,
    in_turn,
    markdown_table,
    medians,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.harness.processes import MOLINK, cpu_s, running

__all__ = ["SECRET", "main", "start_relay"]

MESSAGE_BYTES = 16 * 1024
"""A decode micro-batch of two rows of a 4,096-wide model in 16 bits."""

LARGE_BYTES = 1024 * 1024
"""A prefill span."""

SENDER, RECEIVER = "a" * 16, "b" * 16
SECRET = "an open secret that is only for measuring"
STEADY_MBPS = 100.0
STEADY_S = 4.0
TIMED_MESSAGES = 1000
FAST_BYTES = 400 * 2**20
WAITING_MESSAGES = 64
"""Between two threads of ours and the network: a link's pacer lets far less be under way."""

PATHS = ("direct", "relay")

RELAY_ENDS = "tools.experiments.relay.relay_ends"

LABELS = {
    "latency_p50_ms": "one message of 16 KB, one way, p50, ms",
    "latency_p99_ms": "p99, ms",
    "mb_per_s": "messages of 16 KB, MB/s",
    "large_mb_per_s": "messages of 1 MB, MB/s",
    "relay_ms_per_s": "relay's processor time at 100 Mbps, ms per s",
    "agents_ms_per_s": "both agents', ms per s",
    "relay_fast_share": "relay's share of a core, as fast as it goes",
}


@experiment
@rounds_option()
def main(out: Path, rounds: int) -> None:
    """Measure a link over loopback, and the same through a relay."""

    async def measure(path: Condition, number: int) -> Measured:
        return Measured(_measure(path.name))

    runs = in_turn([Condition(path) for path in PATHS], rounds, measure)
    middle = medians(runs)
    options = {"rounds": rounds, "message_bytes": MESSAGE_BYTES, "steady_mbps": STEADY_MBPS}
    write_report(out, "relay", {"options": options, "medians": middle, "runs": figures_of(runs)})
    show(_table(middle))


def _measure(path: str) -> Figures:
    """One path in one round; LABELS says what each figure is."""
    with _opened(path) as link:
        latencies_s = _latencies(link.sender, link.receiver)
        relay_s, agents_s = _used_at_a_steady_rate_s(link)
        fast_from_s = cpu_s(*link.relay)
        fast_s = _stream(link.sender, link.receiver, MESSAGE_BYTES, FAST_BYTES)
        share = (cpu_s(*link.relay) - fast_from_s) / fast_s
        large_s = _stream(link.sender, link.receiver, LARGE_BYTES, FAST_BYTES)
    return {
        "latency_p50_ms": statistics.median(latencies_s) * 1e3,
        "latency_p99_ms": statistics.quantiles(latencies_s, n=100)[98] * 1e3,
        "mb_per_s": FAST_BYTES / fast_s / 1e6,
        "large_mb_per_s": FAST_BYTES / large_s / 1e6,
        "relay_ms_per_s": relay_s / STEADY_S * 1e3,
        "agents_ms_per_s": agents_s / STEADY_S * 1e3,
        "relay_fast_share": share,
    }


@dataclass(frozen=True, slots=True)
class _Link:
    """Two connected sockets, and the processes that carry between them."""

    sender: "zmq.Socket[bytes]"
    receiver: "zmq.Socket[bytes]"
    relay: list[psutil.Process]
    """Empty where nothing is between them; so are the agents."""
    agents: list[psutil.Process]


@contextmanager
def _opened(path: str) -> Iterator[_Link]:
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        sender, receiver = _sockets(context)
        port = receiver.bind_to_random_port("tcp://127.0.0.1")
        address = f"127.0.0.1:{port}"
        relay: list[psutil.Process] = []
        agents: list[psutil.Process] = []
        if path == "relay":
            address, relay, agents = stack.enter_context(_relayed(address))
        sender.connect(f"tcp://{address}")
        yield _Link(sender, receiver, relay, agents)
        sender.close(linger=0)
        receiver.close(linger=0)


def _used_at_a_steady_rate_s(link: _Link) -> tuple[float, float]:
    """Processor seconds of the relay and of the agents in STEADY_S."""
    relay_s, agents_s = cpu_s(*link.relay), cpu_s(*link.agents)
    total_bytes = int(STEADY_MBPS / 8 * 1e6 * STEADY_S)
    _stream(link.sender, link.receiver, MESSAGE_BYTES, total_bytes, STEADY_MBPS)
    return cpu_s(*link.relay) - relay_s, cpu_s(*link.agents) - agents_s


def _sockets(context: "zmq.Context[zmq.Socket[bytes]]") -> "list[zmq.Socket[bytes]]":
    """Sender and receiver, encrypted as links are."""
    sender, receiver = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    receiver.curve_server = True
    receiver.curve_publickey, receiver.curve_secretkey = public, secret
    sender.curve_serverkey = public
    sender.curve_publickey, sender.curve_secretkey = zmq.curve_keypair()
    for socket in (sender, receiver):
        socket.setsockopt(zmq.SNDHWM, WAITING_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, WAITING_MESSAGES)
    return [sender, receiver]


def _latencies(sender: "zmq.Socket[bytes]", receiver: "zmq.Socket[bytes]") -> list[float]:
    """Seconds of single messages; the first ones open the connection and do not count."""
    message, times_s = os.urandom(MESSAGE_BYTES), []
    for _ in range(TIMED_MESSAGES + 50):
        began_s = time.perf_counter()
        sender.send(message)
        receiver.recv()
        times_s.append(time.perf_counter() - began_s)
    return times_s[50:]


def _stream(
    sender: "zmq.Socket[bytes]",
    receiver: "zmq.Socket[bytes]",
    message_bytes: int,
    total_bytes: int,
    mbps: float | None = None,
) -> float:
    """Seconds until all has arrived, sent at a rate or as fast as it goes."""
    count, message = total_bytes // message_bytes, os.urandom(message_bytes)
    began_s = time.perf_counter()

    def send() -> None:
        for number in range(count):
            if mbps is not None:
                due_s = began_s + number * message_bytes * 8 / (mbps * 1e6)
                time.sleep(max(0.0, due_s - time.perf_counter()))
            sender.send(message)

    sending = threading.Thread(target=send)
    sending.start()
    for _ in range(count):
        receiver.recv()
    sending.join()
    return time.perf_counter() - began_s


@contextmanager
def start_relay() -> Iterator[tuple[psutil.Process, str]]:
    """`molink relay` in a process of its own, and its host:port."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        write_private(secret, SECRET)
        where = ("--host", "127.0.0.1", "--port", "0", "--secret-file", str(secret))
        with running(MOLINK, "relay", *where) as relay:
            yield psutil.Process(relay.pid), relay.line()[1].split()[-1]


@contextmanager
def _relayed(address: str) -> Iterator[tuple[str, list[psutil.Process], list[psutil.Process]]]:
    """(where the sender connects, the relay, the two agents)."""
    with ExitStack() as stack:
        relay, at = stack.enter_context(start_relay())

        def agent(role: str, node_id: str, last: str) -> tuple[psutil.Process, str]:
            token = relay_token(SECRET.encode(), node_id)
            started = stack.enter_context(running(RELAY_ENDS, role, at, node_id, token, last))
            return psutil.Process(started.pid), started.line()[1]

        receiver, _ = agent("receiver", RECEIVER, address)
        tunnel, ready = agent("tunnel", SENDER, RECEIVER)
        yield json.loads(ready)["address"], [relay], [receiver, tunnel]


def _table(medians: dict[str, dict[str, float]]) -> str:
    rows = [
        [label, *(f"{medians[path][name]:,.3g}" for path in PATHS)]
        for name, label in LABELS.items()
    ]
    return markdown_table(["", *PATHS], rows)


if __name__ == "__main__":
    main()
