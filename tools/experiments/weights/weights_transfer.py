"""How fast do weights come from a coordinator, and what does a kill at half cost?

    python -m tools.experiments.weights.weights_transfer MODEL --json FILE

A shelf and a downloader, each a process of its own, over loopback, so what is measured is what the
software costs: hashing, checking, writing. A home line is slower than any of it. Bytes are counted
where they leave the shelf. While nodes download without a cap, another client asks the shelf's
event loop for something small, again and again: what it waits is what a user's token would.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from molink.checkpoint.description import describe
from molink.workload.figures import percentile
from tools.experiments.harness.results import markdown_table

__all__ = ["main"]

TOKEN = "benchmark"
SERVE_WEIGHTS = "tools.experiments.weights.serve_weights"
ENVIRONMENT = {**os.environ, "MOLINK_WEIGHTS_TOKEN": TOKEN}
HALF = 0.5
NODES = 3
"""Download at once when the event loop is watched: a small ring."""
ASK_EVERY_S = 0.005
SENT = (".json", ".safetensors")
HOME_MBPS = 250
"""A fast home line: slow enough that little is on its way when the download is killed."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Fetched:
    """One run of the downloader."""

    wall_s: float
    """With the start of its process."""
    transfer_s: float
    """From its first sign of progress, when everything on the disk has been checked."""
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Shelf:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    ready_s: float

    def sent_bytes(self) -> int:
        """Of files, since it started."""
        with urllib.request.urlopen(self.url.removesuffix("/weights") + "/sent") as answer:
            return int(json.load(answer)["bytes"])


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--rounds", default=3, show_default=True, help="Of which medians are taken.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write this file.")
def main(model: Path, rounds: int, json_file: Path | None) -> None:
    """Measure downloads of MODEL over loopback."""
    runs = [_round(model) for _ in range(rounds)]
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    click.echo(markdown_table(("", "median"), [[key, f"{middle[key]:.4g}"] for key in middle]))
    if json_file is not None:
        report = {"experiment": "weights_transfer", "model": model.name, "rounds": rounds}
        report |= {"machine": {"cores": os.cpu_count()}, "medians": middle, "runs": runs}
        json_file.write_text(json.dumps(_rounded(report), indent=2) + "\n")


def _round(model: Path) -> Figures:
    layers = describe(str(model)).layers
    with tempfile.TemporaryDirectory(prefix="molink-weights-") as scratch:
        root = Path(scratch)
        with _shelf(model, root / "sums") as shelf:
            hashing_s = shelf.ready_s
        with _shelf(model, root / "sums") as shelf:
            figures = {"hashing_and_start_s": hashing_s, "start_with_kept_sums_s": shelf.ready_s}
            figures |= _whole(shelf, root / "whole", layers)
            figures |= _third(shelf, root / "third", layers)
            figures |= _killed(shelf, model, root / "killed")
            figures |= _watched(shelf, root / "watched", layers)
        with _shelf(model, root / "sums", "--mbps", str(HOME_MBPS)) as shelf:
            killed = _killed(shelf, model, root / "home")
            figures |= {f"home_{key}": value for key, value in killed.items()}
    return figures


def _whole(shelf: Shelf, directory: Path, layers: int) -> Figures:
    """All layers, then once more when they are there."""
    before, cpu_s = shelf.sent_bytes(), _cpu_s(shelf.process.pid)
    first = _fetch(shelf, directory, range(layers))
    sent = shelf.sent_bytes() - before
    serving_s = _cpu_s(shelf.process.pid) - cpu_s
    again = _fetch(shelf, directory, range(layers))
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
        "sent_when_nothing_to_fetch_mb": (shelf.sent_bytes() - before - sent) / 1e6,
    }


def _third(shelf: Shelf, directory: Path, layers: int) -> Figures:
    """The middle third, without embeddings and output matrix."""
    before = shelf.sent_bytes()
    _fetch(shelf, directory, range(layers // 3, 2 * layers // 3))
    needed = sum(path.stat().st_size for path in directory.glob("models/*/parts/layer-*tensors"))
    sent = shelf.sent_bytes() - before
    return {"third_needed_mb": needed / 1e6, "third_sent_mb": sent / 1e6}


def _killed(shelf: Shelf, model: Path, directory: Path) -> Figures:
    """Killed when it tells of half, then started again."""
    layers, before = describe(str(model)).layers, shelf.sent_bytes()
    process = _start(shelf, directory, range(layers))
    killed_at = next(at for at in _progress(process) if at >= HALF)
    process.send_signal(signal.SIGKILL)
    process.wait()
    began_bytes = shelf.sent_bytes()
    rest = _fetch(shelf, directory, range(layers))
    sent = shelf.sent_bytes() - before
    whole = sum(one.stat().st_size for one in model.iterdir() if one.suffix in SENT)
    return {
        "killed_at": killed_at,
        "resume_wall_s": rest.wall_s,
        "resume_sent_mb": (shelf.sent_bytes() - began_bytes) / 1e6,
        "fetched_twice_mb": (sent - whole) / 1e6,
        "resume_transfer_s": rest.transfer_s,
    }


def _watched(shelf: Shelf, directory: Path, layers: int) -> Figures:
    """What something small waits, on an idle shelf and while nodes download."""
    idle = _waits(shelf, threading.Event(), seconds=1.0)
    done = threading.Event()
    waits: list[float] = []
    watch = threading.Thread(target=lambda: waits.extend(_waits(shelf, done)))
    watch.start()
    nodes = [_start(shelf, directory / str(node), range(layers)) for node in range(NODES)]
    for node in nodes:
        node.communicate()
    done.set()
    watch.join()
    return {
        "idle_wait_p99_ms": 1e3 * percentile(sorted(idle), 99),
        "busy_wait_p50_ms": 1e3 * percentile(sorted(waits), 50),
        "busy_wait_p99_ms": 1e3 * percentile(sorted(waits), 99),
    }


def _waits(shelf: Shelf, done: threading.Event, seconds: float = 60.0) -> list[float]:
    waits, end = [], time.perf_counter() + seconds
    while not done.wait(ASK_EVERY_S) and time.perf_counter() < end:
        began = time.perf_counter()
        shelf.sent_bytes()
        waits.append(time.perf_counter() - began)
    return waits


# -- processes ------------------------------------------------------------------------------------


@contextmanager
def _shelf(model: Path, sums: Path, *options: str) -> Iterator[Shelf]:
    command = [
        sys.executable,
        "-m",
        "tools.experiments.weights.serve_weights",
        str(model),
        str(sums),
        *options,
    ]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            yield Shelf(process, url, time.perf_counter() - began)
        finally:
            process.terminate()


def _start(shelf: Shelf, directory: Path, layers: range) -> subprocess.Popen[str]:
    numbers = (str(layers.start), str(layers.stop))
    command = [sys.executable, "-m", "molink_agent.weights", shelf.url, *numbers, str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def _progress(process: subprocess.Popen[str]) -> Iterator[float]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line).get("fraction", 1.0)


def _fetch(shelf: Shelf, directory: Path, layers: range) -> Fetched:
    began = time.perf_counter()
    process = _start(shelf, directory, layers)
    times = [time.perf_counter() for _ in _progress(process)]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException("a download failed: see above")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Fetched(time.perf_counter() - began, times[-1] - times[0], cpu_s, usage.ru_maxrss / 1024)


def _cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list():
            return [_rounded(one) for one in value]
        case _:
            return value


if __name__ == "__main__":
    main()
