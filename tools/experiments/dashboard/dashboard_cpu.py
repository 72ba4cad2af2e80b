"""What the dashboard costs the PC that it runs on, and how long it takes to start.

    python -m tools.experiments.dashboard.dashboard_cpu --out DIR

A server of this experiment answers as a coordinator with a hundred nodes in twenty rings does, with
requests under way whose figures change at each look. `molink dashboard` looks twice a second, on a
terminal of 120 x 40 that is a pseudo-terminal here. What is measured: processor time of its process
over the time that passes, on each view; and the time from its start until its first screen is
drawn.
"""

import asyncio
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click
import psutil
from aiohttp import web

from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    milliseconds,
    show,
    write_report,
)
from tools.experiments.harness.processes import MOLINK, cpu_s

__all__ = ["main"]

RINGS, STAGES = 20, 5
LIVE, ENDED = 40, 200
"""Requests, as a coordinator lists them."""

COLUMNS, LINES = 120, 40

VIEWS = {"ring": "1", "nodes": "2", "requests": "3"}

DRAWN = b"7 alerts"
"""In the last line of the first screen."""

SETTLED_S = 5.0


@experiment
@click.option("--seconds", default=30.0, show_default=True, help="Of each view.")
@click.option("--starts", default=5, show_default=True, help="Of which the median is taken.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout: only start both in turn, and compare pair by pair.",
)
def main(out: Path, seconds: float, starts: int, against: Path | None) -> None:
    """Measure, and write OUT/dashboard_cpu.json, or OUT/dashboard_start.json with --against."""
    if against is not None:
        asyncio.run(_compare(out, starts, against.absolute()))
    else:
        asyncio.run(_measure(out, seconds, starts))


async def _compare(out: Path, starts: int, other: Path) -> None:
    """Start this checkout and the other in turn."""
    async with _coordinator() as url:
        pairs = [
            (await asyncio.to_thread(_start, url, other), await asyncio.to_thread(_start, url))
            for _ in range(starts)
        ]
    figures: dict[str, Any] = {"starts": starts, "load": os.getloadavg()[0]}
    rows = []
    for at, name in enumerate(("wall_s", "cpu_s")):
        before, now = ([pair[side][at] for pair in pairs] for side in (0, 1))
        saved_s = statistics.median(one - two for one, two in zip(before, now, strict=True))
        medians = [statistics.median(before), statistics.median(now), saved_s]
        figures[name] = dict(zip(("before", "now", "saved"), medians, strict=True))
        figures[name]["now_least"] = min(now)
        rows.append([name, *(f"{milliseconds(one)} ms" for one in medians)])
    show(markdown_table(["until the first screen", "before", "now", "saved, by pairs"], rows))
    write_report(out, "dashboard_start", figures)


async def _measure(out: Path, seconds: float, starts: int) -> None:
    async with _coordinator() as url:
        started = [await asyncio.to_thread(_start, url) for _ in range(starts)]
        shares = await asyncio.to_thread(_shares, url, seconds)
    start_s, start_cpu_s = (statistics.median(one) for one in zip(*started, strict=True))
    rows = [[f"view {view}", f"{100 * share:.1f} % of a core"] for view, share in shares.items()]
    rows.append(["start until the first screen", f"{milliseconds(start_s)} ms"])
    rows.append(["processor time until then", f"{milliseconds(start_cpu_s)} ms"])
    show(markdown_table(["100 nodes, 2 looks a second", "measured"], rows))
    figures = {"nodes": RINGS * STAGES, "start_s": start_s, "start_cpu_s": start_cpu_s}
    write_report(out, "dashboard_cpu", {**figures, "core_share": shares})


def _start(url: str, checkout: Path | None = None) -> tuple[float, float]:
    """Time until the first screen, and processor time until then."""
    with _terminal(url, checkout) as screen:
        return screen.drawn_s(), cpu_s(screen.process)


def _shares(url: str, seconds: float) -> dict[str, float]:
    """Part of a core on each view."""
    found = {}
    with _terminal(url) as screen:
        screen.drawn_s()
        for view, key in VIEWS.items():
            screen.press(key)
            time.sleep(SETTLED_S)
            before, began = cpu_s(screen.process), time.perf_counter()
            time.sleep(seconds)
            found[view] = (cpu_s(screen.process) - before) / (time.perf_counter() - began)
    return found


class _Screen:
    """A dashboard on a pseudo-terminal."""

    def __init__(self, process: psutil.Process, terminal: int, began: float) -> None:
        self.process = process
        self._terminal, self._began = terminal, began
        self._drawn = threading.Event()
        self._drawn_at = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def drawn_s(self) -> float:
        """Time from its start until its first screen was drawn."""
        if not self._drawn.wait(30):
            raise click.ClickException("the dashboard draws nothing")
        return self._drawn_at - self._began

    def press(self, key: str) -> None:
        """Type a key."""
        os.write(self._terminal, key.encode())

    def _read(self) -> None:
        seen = b""
        while True:
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:
                return
            seen = (seen + piece)[-100_000:]
            if not self._drawn.is_set() and DRAWN in seen:
                self._drawn_at = time.perf_counter()
                self._drawn.set()


@contextmanager
def _terminal(url: str, checkout: Path | None = None) -> Iterator[_Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", MOLINK, "dashboard", "--url", url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=checkout,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield _Screen(psutil.Process(process.pid), ours, began)
    finally:
        process.terminate()
        process.wait(10)
        os.close(ours)


# -- the coordinator ------------------------------------------------------------------------------


@asynccontextmanager
async def _coordinator() -> Any:
    """Its URL."""
    looks = [0]

    async def cluster(request: web.Request) -> web.Response:
        looks[0] += 1
        return web.json_response(_cluster(looks[0]))

    async def requests(request: web.Request) -> web.Response:
        return web.json_response({"requests": _requests(looks[0])})

    async def events(request: web.Request) -> web.Response:
        return web.json_response({"events": [], "next": 0})

    app = web.Application()
    app.add_routes(
        [
            web.get("/cluster", cluster),
            web.get("/cluster/requests", requests),
            web.get("/cluster/events", events),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def _cluster(look: int) -> dict[str, Any]:
    rings = [_ring(number, look) for number in range(RINGS)]
    nodes = [_node(f"pc{index:03}", index, look) for index in range(RINGS * STAGES)]
    return {**rings[0], "rings": rings, "nodes": nodes, "unready_reason": None, "trouble": []}


def _ring(number: int, look: int) -> dict[str, Any]:
    names = [f"pc{STAGES * number + index:03}" for index in range(STAGES)]
    ends = list(zip(names, (*names[1:], names[0]), strict=True))
    return {
        "model": "org/model",
        "ring": number,
        "epoch": number,
        "stages": [_stage(name, index, look) for index, name in enumerate(names)],
        "links": [_link(*one, look) for one in (("coordinator", names[0]), *ends)],
        "requests": {"running": 2, "waiting": look % 2},
        "wire": {"codec": "int8", "reason": "a check let it", "check_passed": True},
        "forecast": {"users": 4, "tpot_s": 0.1, "ttft_s": 1.0, "tokens_per_s": 40.0},
    }


def _stage(name: str, index: int, look: int) -> dict[str, Any]:
    return {
        "node": name,
        "pid": 1000 + index,
        "layers": [8 * index, 8 * index + 8],
        "device": "cuda:0",
        "dtype": "bfloat16",
        "weights_bytes": 10**10,
        "kv_tokens_capacity": 100_000,
        "kv_tokens_used": 100 * (look % 700),
        "busy_share": 0.3 + 0.001 * ((look * 37 + index) % 500),
        "steps": 20 * look,
        "decode_step_s": 0.02 + 0.00001 * ((look * 53 + index) % 300),
        "prefill_row_s": 1e-4,
        "decode_round_s": 0.12,
        "micro_batch_count": 4,
        "frames_refused": 0,
    }


def _link(source: str, target: str, look: int) -> dict[str, Any]:
    return {
        "from": source,
        "to": target,
        "bytes_sent": 200_000 * look,
        "decode_waiting": look % 3,
        "prefill_waiting": look % 2,
        "decode_queued_bytes": 1000 * (look % 3),
        "prefill_queued_bytes": 50_000 * (look % 2),
        "rate_mbps": 40.0 + 0.1 * (look % 20),
        "rtt_ms": 30.0,
        "queueing_delay_ms": 2.0,
        "in_flight_bytes": 20_000,
        "foreign_upload": False,
        "wire": "int8",
        "bytes_saved": 10_000 * look,
    }


def _node(name: str, index: int, look: int) -> dict[str, Any]:
    steps = {"decode_fixed_s": 0.0025, "decode_row_s": 1e-5, "prefill_row_s": 1e-4}
    return {
        "id": f"{index:016}",
        "name": name,
        "pc": f"{index:016}",
        "state": "serving",
        "reason": "",
        "drained": False,
        "ring": index // STAGES,
        "layers": [8 * (index % STAGES), 8 * (index % STAGES) + 8],
        "loaded": None,
        "device": "cuda:0",
        "memory": {"lent_bytes": 8 * 2**30, "total_bytes": 12 * 2**30},
        "paths": {"next": "direct"},
        "profile": {"upload_mbps": 40.0, "download_mbps": 100.0, "nat": "cone", "steps": steps},
        "contribution": {
            "uptime_s": look // 2,
            "token_layers": 80 * look,
            "bytes_sent": 200_000 * look,
        },
        "doubts": [],
    }


def _requests(look: int) -> list[dict[str, Any]]:
    """Live ones first; every few looks one has ended and another has come."""
    newest = 100 + look // 4
    live = [_request(number, look, is_live=True) for number in range(newest, newest - LIVE, -1)]
    ended = range(newest - LIVE, newest - LIVE - ENDED, -1)
    return [*live, *(_request(number, look, is_live=False) for number in ended)]


def _request(number: int, look: int, *, is_live: bool) -> dict[str, Any]:
    stages = [{"node": f"pc{index:03}", "layers": [8 * index, 8 * index + 8]} for index in range(5)]
    attempt = {"ring": number % RINGS, "stages": stages, "submitted_s": 0.01, "started_s": 0.1}
    return {
        "id": f"{number:024x}",
        "choice": 0,
        "model": "org/model",
        "key_id": "k1",
        "state": "decode" if is_live else "ended",
        "received_unix_s": 1.8e9 + number,
        "age_s": 20.0,
        "prompt_tokens": 500,
        "prompt_tokens_done": 500,
        "answer_tokens_max": 256,
        "tokens": 5 * (look % 40) if is_live else 200,
        "queue_s": 0.1,
        "prefill_s": 0.8,
        "decode_s": 19.0,
        "tpot_s": 0.095,
        "total_s": 20.0,
        "finish_reason": None if is_live else "stop",
        "error": "",
        "attempts": [attempt | {"first_token_s": 0.9, "ended_s": None, "tokens": 100}],
    }


if __name__ == "__main__":
    main()
