"""What does a layer's call to a lender in another PC of the LAN take, and what does sealing it?

    python -m tools.experiments.room.lan_cost --out DIR

The lender is a real one (`molink.lender.lan.lan_server`) in a network namespace, behind a pair of
virtual Ethernet devices that `tbf` holds to 1 and 10 Gbit/s in both directions; root on Linux. One
layer of Llama-3-8B's shape in bf16: rows of 32 query heads go there, their attention to lent keys
comes back. In turn with each call the same one goes to a lender behind a TCP socket that nothing
seals. Arithmetic is what the unshaped pair takes, and the bytes of queries and answers at the rate,
without those that `tbf` lets pass at once.
"""

import json
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch

from molink.engine_protocol.lender import LentKv, LentLayer, LentSpan
from molink.json_object import JsonObject
from molink.lender.client import LenderClient
from molink.lender.lan.echoes import measure_echoes
from molink.lender.lan.lan_lender import LanLease, lan_lender
from molink.lender.lender_process import LenderLoop
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from tools.experiments.harness.experiment import experiment
from tools.experiments.homes.home_network import run_ip

__all__ = ["lend_plainly", "main"]

NAMESPACE, HERE, THERE = "molink-lan", "mlan0", "mlan1"
OWN_ADDRESS, ADDRESS = "198.19.255.1", "198.19.255.2"
HEADS, KV_HEADS, SIZE = 32, 8, 128
KV = LentKv((LentLayer(0, KV_HEADS, SIZE, SIZE),), "bfloat16", "auto")
BLOCK_BYTES = 2 * BLOCK_TOKENS * KV_HEADS * SIZE * 2
BLOCKS = 256
CALLS = ((1, 16), (8, 16), (16, 16), (1, 4096), (8, 4096))
"""Rows, and lent keys that each of them sees."""

ROW_BYTES = 2 * HEADS * SIZE * 2 + 4 * HEADS
"""Bytes of a row's queries, their attention and its log-sum-exps."""


class Shape(NamedTuple):
    """What `tbf` holds a device to."""

    bits_per_s: float
    burst_bytes: int
    """Bytes that pass at once, which a call begins with. The fewer the sooner the kernel is to be
    back for the next ones: with fewer the rate is not reached."""
    segment_bytes: int
    """Bytes of what the kernel hands to the device, at most: what is above a burst is cut up."""

    def added_us(self, bytes_each_way: int) -> float:
        """What it adds to a call."""
        return 2 * max(0, bytes_each_way - self.burst_bytes) * 8 / self.bits_per_s * 1e6


SHAPES = {
    "unshaped": None,
    "10 Gbit/s": Shape(10e9, 20_000, 16_384),
    "1 Gbit/s": Shape(1e9, 6_000, 4_344),
}

PAIRS, PAIRS_LONG, WARM = 150, 20, 5
BYTES_LENT = 2**30


@experiment
def main(out: Path) -> None:
    """Print microseconds of a call, sealed and not, and by arithmetic."""
    torch.set_num_threads(1)
    lines = ["| link | rows x lent keys | plain | sealed | arithmetic | off by |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    with _lan(), _sealed_lender() as (lease, echoed), _plain_lender() as plain:
        sealed = lan_lender(lease)
        for client in (sealed, plain):
            client.timeout_s = (10.0, 10.0)
            client.hold(KV, BLOCKS)
            client.put(range(BLOCKS), _blocks())
        lines += _table(sealed, plain, echoed)
    out.mkdir(parents=True, exist_ok=True)
    (out / "lan_cost.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _table(
    sealed: LenderClient, plain: LenderClient, echoed: Callable[[], list[float]]
) -> Iterator[str]:
    base_us: dict[tuple[int, int], float] = {}
    for name, shape in SHAPES.items():
        if shape is not None:
            _hold_to(shape)
        for rows, keys in CALLS:
            calls = _call(plain, rows, keys), _call(sealed, rows, keys)
            plain_us, sealed_us = _pairs(*calls, PAIRS if keys < 1000 else PAIRS_LONG)
            row = f"| {name} | {rows} x {keys:,} | {plain_us:,.0f} | {sealed_us:,.0f} |"
            if shape is None:
                base_us[rows, keys] = sealed_us
                yield f"{row} | |"
            else:
                sums_us = base_us[rows, keys] + shape.added_us(rows * ROW_BYTES // 2)
                yield f"{row} {sums_us:,.0f} | {sealed_us / sums_us - 1:+.0%} |"
        echoes_us = sorted(one * 1e6 for one in echoed())
        yield (
            f"| {name} | 20 echoes | | {statistics.median(echoes_us):,.0f}, the 19th "
            f"{echoes_us[18]:,.0f} | | |"
        )


def _call(client: LenderClient, rows: int, keys: int) -> Callable[[], None]:
    span = LentSpan(1, keys, range(keys // BLOCK_TOKENS))
    plan, q_RHA = (span,) * rows, np.full((rows, HEADS, SIZE), 0x3F80, np.uint16)

    def called() -> None:
        client.plan(plan)  # Told once, as for the layers of a step.
        client.ask(0, q_RHA, SIZE**-0.5, None, None)
        client.answer()

    return called


def _pairs(one: Callable[[], None], other: Callable[[], None], count: int) -> tuple[float, float]:
    """Medians in microseconds, each call in turn with the other."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM + count):
        for call, taken in zip((one, other), seconds, strict=True):
            started = time.perf_counter()
            call()
            if number >= WARM:
                taken.append(time.perf_counter() - started)
    return statistics.median(seconds[0]) * 1e6, statistics.median(seconds[1]) * 1e6


def _blocks() -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    rows = torch.randn(BLOCKS, BLOCK_BYTES // 2, generator=torch.Generator().manual_seed(1))
    return rows.bfloat16().view(torch.uint8).numpy()


# -- the LAN ------------------------------------------------------------------------------------


@contextmanager
def _lan() -> Iterator[None]:
    """Two ends of a cable, of which the other one is in a namespace of its own."""
    within = ["-n", NAMESPACE]
    try:
        run_ip(
            [
                ["netns", "add", NAMESPACE],
                ["link", "add", HERE, "type", "veth", "peer", "name", THERE, "netns", NAMESPACE],
                ["addr", "add", f"{OWN_ADDRESS}/30", "dev", HERE],
                [*within, "addr", "add", f"{ADDRESS}/30", "dev", THERE],
                ["link", "set", HERE, "up"],
                [*within, "link", "set", THERE, "up"],
            ]
        )
        yield
    finally:
        run_ip([["netns", "del", NAMESPACE]])  # The devices go with it.


def _hold_to(shape: Shape) -> None:
    token_bucket = ["rate", f"{shape.bits_per_s:.0f}bit", "burst", str(shape.burst_bytes)]
    for within, device in (([], HERE), (["-n", NAMESPACE], THERE)):
        segment = ["gso_max_size", str(shape.segment_bytes)]
        run_ip([[*within, "link", "set", device, *segment]])
        discipline = ["qdisc", "replace", "dev", device, "root", "tbf", *token_bucket]
        subprocess.run(["tc", *within, *discipline, "limit", "4mb"], check=True)


@contextmanager
def _sealed_lender() -> Iterator[tuple[LanLease, Callable[[], list[float]]]]:
    """A lease of a real server, and its echoes by another one."""
    arguments = ["-m", "molink.lender.lan.lan_server", "--bind", ADDRESS, "--threads", "1"]
    with _there(arguments) as process:
        first, key = _read(process), secrets.token_hex(32)
        for number, lent in ((1, BYTES_LENT), (2, 0)):
            _write(process, {"allow": number, "key": key, "bytes": lent})
        port = first["port"]
        lease = LanLease(ADDRESS, port, 1, key, first["incarnation"], BYTES_LENT)
        yield lease, lambda: measure_echoes(ADDRESS, port, 2, key)


@contextmanager
def _plain_lender() -> Iterator[LenderClient]:
    program = "from tools.experiments.room.lan_cost import lend_plainly; lend_plainly()"
    with _there(["-c", program]) as process:
        link = socket.create_connection((ADDRESS, _read(process)["port"]), 10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with link:
            yield LenderClient(link)


def lend_plainly() -> None:
    """Lend to one stage behind a socket that nothing seals."""
    torch.set_num_threads(1)
    with socket.create_server((ADDRESS, 0)) as listener:
        print(f'{{"port": {listener.getsockname()[1]}}}', flush=True)
        link, _ = listener.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        LenderLoop(link, 1).run()


@contextmanager
def _there(arguments: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """A process in the namespace, which ends when its input closes or its link does."""
    command = ["ip", "netns", "exec", NAMESPACE, sys.executable, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        _end_of(process.stdin).close()
        process.wait(30)
        _end_of(process.stdout).close()


def _read(process: "subprocess.Popen[bytes]") -> JsonObject:
    line: JsonObject = json.loads(_end_of(process.stdout).readline())
    return line


def _write(process: "subprocess.Popen[bytes]", order: JsonObject) -> None:
    _end_of(process.stdin).write(json.dumps(order).encode() + b"\n")
    _end_of(process.stdin).flush()


def _end_of(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


if __name__ == "__main__":
    main()
