"""How fast do weights come from a coordinator, and what does a kill at half cost?

    python -m tools.experiments.weights.weights_transfer MODEL --out DIR

A server of weights and a downloader, each a process of its own, over loopback, so what is measured
is what the software costs: hashing, checking, writing. A home line is slower than any of it. Bytes
are counted where they leave the server. While nodes download without a cap, another client asks the
server's event loop for something small, again and again: what it waits is what a user's token
would.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from molink.checkpoint.description import describe
from molink.errors import UserError
from molink.workload.figures import percentile
from tools.experiments.harness.agents import get_json
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
from tools.experiments.harness.processes import cpu_s, running

__all__ = ["main"]

TOKEN = "benchmark"
SERVE_WEIGHTS = "tools.experiments.weights.serve_weights"
ENVIRONMENT = {"MOLINK_WEIGHTS_TOKEN": TOKEN}
HALF = 0.5
NODES = 3
"""Download at once when the event loop is watched: a small ring."""
ASK_EVERY_S = 0.005
SENT = (".json", ".safetensors")
HOME_MBPS = 250
"""A fast home line: slow enough that little is on its way when the download is killed."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one run of the downloader took."""

    wall_s: float
    """With the start of its process."""
    transfer_s: float
    """From its first sign of progress, when everything on the disk has been checked."""
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class WeightsServer:
    """A running `serve_weights`."""

    process: psutil.Process
    url: str
    ready_s: float
    """How long it took until it served."""

    def sent_bytes(self) -> int:
        """Bytes of files that it has sent since it started."""
        return int(get_json(self.url.removesuffix("/weights") + "/sent")["bytes"])


@experiment
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@rounds_option()
def main(out: Path, model: Path, rounds: int) -> None:
    """Measure downloads of MODEL over loopback."""

    async def measure(condition: Condition, number: int) -> Measured:
        return Measured(_round(model))

    runs = in_turn([Condition("download")], rounds, measure)
    middle = medians(runs)["download"]
    show(markdown_table(("", "median"), [[key, f"{middle[key]:.4g}"] for key in middle]))
    report = {"model": model.name, "rounds": rounds, "medians": middle}
    write_report(
        out, "weights_transfer", {**report, "runs": figures_of(runs)["download"]}, "weights"
    )


def _round(model: Path) -> Figures:
    layers = describe(str(model)).layers
    with tempfile.TemporaryDirectory(prefix="molink-weights-") as scratch:
        root = Path(scratch)
        with _serving(model, root / "sums") as server:
            hashing_s = server.ready_s
        with _serving(model, root / "sums") as server:
            figures = {"hashing_and_start_s": hashing_s, "start_with_kept_sums_s": server.ready_s}
            figures |= _whole(server, root / "whole", layers)
            figures |= _third(server, root / "third", layers)
            figures |= _killed(server, model, root / "killed")
            figures |= _watched(server, root / "watched", layers)
        with _serving(model, root / "sums", "--mbps", str(HOME_MBPS)) as server:
            killed = _killed(server, model, root / "home")
            figures |= {f"home_{key}": value for key, value in killed.items()}
    return figures


def _whole(server: WeightsServer, directory: Path, layers: int) -> Figures:
    """Figures of all layers, then once more when they are there."""
    before, used_s = server.sent_bytes(), cpu_s(server.process)
    first = _fetch(server, directory, range(layers))
    sent = server.sent_bytes() - before
    serving_s = cpu_s(server.process) - used_s
    again = _fetch(server, directory, range(layers))
    return {
        "whole_mb": sent / 1e6,
        "whole_transfer_s": first.transfer_s,
        "whole_mb_per_s": sent / 1e6 / first.transfer_s,
        "whole_wall_s": first.wall_s,
        "node_cpu_s": first.cpu_s,
        "node_peak_mb": first.peak_mb,
        "coordinator_cpu_s": serving_s,
        "nothing_to_fetch_wall_s": again.wall_s,
        "nothing_to_fetch_cpu_s": again.cpu_s,
        "sent_when_nothing_to_fetch_mb": (server.sent_bytes() - before - sent) / 1e6,
    }


def _third(server: WeightsServer, directory: Path, layers: int) -> Figures:
    """Figures of the middle third, without embeddings and output matrix."""
    before = server.sent_bytes()
    _fetch(server, directory, range(layers // 3, 2 * layers // 3))
    needed = sum(path.stat().st_size for path in directory.glob("models/*/parts/layer-*tensors"))
    sent = server.sent_bytes() - before
    return {"third_needed_mb": needed / 1e6, "third_sent_mb": sent / 1e6}


def _killed(server: WeightsServer, model: Path, directory: Path) -> Figures:
    """Figures of a download that is killed when it reports half, then started again."""
    layers, before = describe(str(model)).layers, server.sent_bytes()
    process = _start(server, directory, range(layers))
    killed_at = next(at for at in _progress(process) if at >= HALF)
    process.send_signal(signal.SIGKILL)
    process.wait()
    began_bytes = server.sent_bytes()
    rest = _fetch(server, directory, range(layers))
    sent = server.sent_bytes() - before
    whole = sum(path.stat().st_size for path in model.iterdir() if path.suffix in SENT)
    return {
        "killed_at": killed_at,
        "resume_wall_s": rest.wall_s,
        "resume_sent_mb": (server.sent_bytes() - began_bytes) / 1e6,
        "fetched_twice_mb": (sent - whole) / 1e6,
        "resume_transfer_s": rest.transfer_s,
    }


def _watched(server: WeightsServer, directory: Path, layers: int) -> Figures:
    """What something small waits, on an idle server and while nodes download."""
    idle = _waits(server, threading.Event(), seconds=1.0)
    done = threading.Event()
    waits: list[float] = []
    watch = threading.Thread(target=lambda: waits.extend(_waits(server, done)))
    watch.start()
    nodes = [_start(server, directory / str(node), range(layers)) for node in range(NODES)]
    for node in nodes:
        node.communicate()
    done.set()
    watch.join()
    return {
        "idle_wait_p99_ms": 1e3 * percentile(sorted(idle), 99),
        "busy_wait_p50_ms": 1e3 * percentile(sorted(waits), 50),
        "busy_wait_p99_ms": 1e3 * percentile(sorted(waits), 99),
    }


def _waits(server: WeightsServer, done: threading.Event, seconds: float = 60.0) -> list[float]:
    waits, end = [], time.perf_counter() + seconds
    while not done.wait(ASK_EVERY_S) and time.perf_counter() < end:
        began = time.perf_counter()
        server.sent_bytes()
        waits.append(time.perf_counter() - began)
    return waits


# -- processes ------------------------------------------------------------------------------------


@contextmanager
def _serving(model: Path, sums: Path, *options: str) -> Iterator[WeightsServer]:
    words = (str(model), str(sums), *options)
    with running(SERVE_WEIGHTS, *words, environment=ENVIRONMENT) as started:
        ready_s, line = started.line()
        process = psutil.Process(started.pid)
        yield WeightsServer(process, json.loads(line)["url"], ready_s - started.started_s)


def _start(server: WeightsServer, directory: Path, layers: range) -> subprocess.Popen[str]:
    numbers = (str(layers.start), str(layers.stop))
    command = [sys.executable, "-m", "molink_agent.weights", server.url, *numbers, str(directory)]
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _progress(process: subprocess.Popen[str]) -> Iterator[float]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line).get("fraction", 1.0)


def _fetch(server: WeightsServer, directory: Path, layers: range) -> Fetched:
    began = time.perf_counter()
    process = _start(server, directory, layers)
    times = [time.perf_counter() for _ in _progress(process)]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError("a download failed: see above")
    used_s, peak_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    return Fetched(time.perf_counter() - began, times[-1] - times[0], used_s, peak_mb)


if __name__ == "__main__":
    main()
