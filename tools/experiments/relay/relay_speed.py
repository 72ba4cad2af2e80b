"""What does a relay add to a link, how much can it carry, and what does it cost?

    python -m tools.experiments.relay.relay_speed --out DIR

Two ZeroMQ sockets with CURVE, as a link has them, in this process; between them nothing but
loopback, or the door of one agent, `molink relay` and the receiver of another agent, a process
each. Paths are measured in turn, several rounds; figures are medians. Latency is one way, of one
message at a time. Processor time is what the kernel has booked on the processes while messages came
at a steady rate.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil
import zmq

from molink.transport.relay.protocol import relay_token
from tools.experiments.harness.results import markdown_table

__all__ = ["SECRET", "RelayFigures", "main", "start_relay"]

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

LABELS = {
    "latency_p50_ms": "one message of 16 KB, one way, p50, ms",
    "latency_p99_ms": "p99, ms",
    "mb_per_s": "messages of 16 KB, MB/s",
    "large_mb_per_s": "messages of 1 MB, MB/s",
    "relay_ms_per_s": "relay's processor time at 100 Mbps, ms per s",
    "agents_ms_per_s": "both agents', ms per s",
    "relay_fast_share": "relay's share of a core, as fast as it goes",
}


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """One path in one round; processor time is that of relay and agents, in milliseconds."""

    path: str
    latency_p50_ms: float
    latency_p99_ms: float
    mb_per_s: float
    """Messages of 16 KB, as fast as they go."""
    large_mb_per_s: float
    """Messages of 1 MB."""
    relay_ms_per_s: float
    """While STEADY_MBPS passed; a thousand is one core."""
    agents_ms_per_s: float
    """Both together."""
    relay_fast_share: float
    """Of a core, while as much as possible passed."""


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="For relay.json."
)
@click.option("--rounds", default=3, show_default=True, help="Of all paths in turn.")
def main(out: Path, rounds: int) -> None:
    """Measure a link over loopback, and the same through a relay."""
    runs: list[RelayFigures] = []
    for number in range(rounds):
        for path in PATHS if number % 2 == 0 else PATHS[::-1]:
            runs.append(_measure(path))
    medians = {path: _median([one for one in runs if one.path == path]) for path in PATHS}
    report = {
        "experiment": "relay",
        "options": {"rounds": rounds, "message_bytes": MESSAGE_BYTES, "steady_mbps": STEADY_MBPS},
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "medians": medians,
        "runs": [asdict(one) for one in runs],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "relay.json").write_text(json.dumps(report, indent=2) + "\n")
    click.echo(f"\n{_table(medians)}\n")


def _measure(path: str) -> RelayFigures:
    with _opened(path) as link:
        latencies_s = _latencies(link.sender, link.receiver)
        relay_s, agents_s = _used_at_a_steady_rate_s(link)
        fast_from_s = _used_s(link.relay)
        fast_s = _stream(link.sender, link.receiver, MESSAGE_BYTES, FAST_BYTES)
        share = (_used_s(link.relay) - fast_from_s) / fast_s
        large_s = _stream(link.sender, link.receiver, LARGE_BYTES, FAST_BYTES)
    return RelayFigures(
        path,
        round(statistics.median(latencies_s) * 1e3, 3),
        round(statistics.quantiles(latencies_s, n=100)[98] * 1e3, 3),
        round(FAST_BYTES / fast_s / 1e6, 1),
        round(FAST_BYTES / large_s / 1e6, 1),
        round(relay_s / STEADY_S * 1e3, 1),
        round(agents_s / STEADY_S * 1e3, 1),
        round(share, 3),
    )


@dataclass(frozen=True, slots=True)
class _Link:
    """Two connected sockets, and who carries between them."""

    sender: "zmq.Socket[bytes]"
    receiver: "zmq.Socket[bytes]"
    relay: psutil.Process | None
    agents: list[psutil.Process]


@contextmanager
def _opened(path: str) -> Iterator[_Link]:
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        sender, receiver = _sockets(context)
        port = receiver.bind_to_random_port("tcp://127.0.0.1")
        address = f"127.0.0.1:{port}"
        relay: psutil.Process | None = None
        agents: list[psutil.Process] = []
        if path == "relay":
            address, relay, agents = stack.enter_context(_relayed(address))
        sender.connect(f"tcp://{address}")
        yield _Link(sender, receiver, relay, agents)
        sender.close(linger=0)
        receiver.close(linger=0)


def _used_at_a_steady_rate_s(link: _Link) -> tuple[float, float]:
    """Processor seconds of the relay and of the agents in STEADY_S."""
    relay_s, agents_s = _used_s(link.relay), _used_s(*link.agents)
    total_bytes = int(STEADY_MBPS / 8 * 1e6 * STEADY_S)
    _stream(link.sender, link.receiver, MESSAGE_BYTES, total_bytes, STEADY_MBPS)
    return _used_s(link.relay) - relay_s, _used_s(*link.agents) - agents_s


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


def _used_s(*processes: psutil.Process | None) -> float:
    """Processor seconds so far."""
    times = [process.cpu_times() for process in processes if process is not None]
    return float(sum(one.user + one.system for one in times))


@contextmanager
def start_relay() -> Iterator[tuple[psutil.Process, str]]:
    """`molink relay` in a process of its own, and its host:port."""
    with ExitStack() as stack:
        secret = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "secret"
        secret.write_text(SECRET)
        where = ["--host", "127.0.0.1", "--port", "0", "--secret-file", str(secret)]
        relay, ready = stack.enter_context(_process("molink.cli.main", "relay", *where))
        yield relay, ready.split()[-1]


@contextmanager
def _relayed(address: str) -> Iterator[tuple[str, psutil.Process, list[psutil.Process]]]:
    """(where the sender connects, the relay, the two agents)."""
    with ExitStack() as stack:
        relay, at = stack.enter_context(start_relay())
        module = "tools.experiments.harness.relay_ends"
        token = relay_token(SECRET.encode(), RECEIVER)
        receiver, _ = stack.enter_context(
            _process(module, "receiver", at, RECEIVER, token, address)
        )
        token = relay_token(SECRET.encode(), SENDER)
        door, ready = stack.enter_context(_process(module, "tunnel", at, SENDER, token, RECEIVER))
        yield json.loads(ready)["address"], relay, [receiver, door]


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[tuple[psutil.Process, str]]:
    """A module of ours that runs, and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), process.stdout.readline()
    finally:
        process.terminate()
        process.communicate()


def _median(runs: Sequence[RelayFigures]) -> dict[str, float]:
    names = [name for name in asdict(runs[0]) if name != "path"]
    return {name: statistics.median(getattr(one, name) for one in runs) for name in names}


def _table(medians: dict[str, dict[str, float]]) -> str:
    rows = [
        [label, *(f"{medians[path][name]:,.3g}" for path in PATHS)]
        for name, label in LABELS.items()
    ]
    return markdown_table(["", *PATHS], rows)


if __name__ == "__main__":
    main()
