"""What do copies to and from a card cost, and what does waiting for it?

    python -m tools.experiments.cards.copies --out DIR

Rates of pinned and of pageable memory; the way of a step's rows as a stage sends them; a list of
numbers that is sent in mid-stream, which waits for all before it; and what a core burns while the
host waits, spinning as torch does by itself, or asleep until the event.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from molink.engine.device.streams import host_memory
from molink.engine.device.transfers import Transfers, transfers_on
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.cards.timing import wait, wall_us
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

SIZES = (8_192, 262_144, 8_388_608, 16_777_216)

PREDICTED_GB_PER_S = {"pinned": (20.0, 60.0), "pageable": (2.0, 12.0)}
"""From 8 MB on; below, launching counts."""

WIDTH = 8_192
ROWS = (1, 16, 512)
PREDICTED_ROWS_US = {1: (20, 200), 16: (30, 250), 512: (600, 4_000)}
"""There and back, with the copies on the host."""

EVENT: Any = torch.cuda.Event

BUSY_S = 0.02
WAITS = 10


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print rates, microseconds and burnt time."""
    keep(out, "copies", torch.device(device), _figures(torch.device(device)))


def _figures(device: torch.device) -> Iterator[Figure]:
    on_card = device.type == "cuda"
    for size in SIZES if on_card else SIZES[:1]:
        yield from _rates(size, device)
    for rows in ROWS if on_card else ROWS[:1]:
        rows_TD, way = torch.ones(rows, WIDTH, dtype=torch.bfloat16), transfers_on(device)
        us = wall_us(partial(_there_and_back, way, rows_TD), device)
        yield Figure(f"{rows} x {WIDTH:,} rows in and out", us, "us", *PREDICTED_ROWS_US[rows])
    if on_card:
        yield from _waiting(device)


def _there_and_back(way: Transfers, rows_TD: torch.Tensor) -> torch.Tensor:
    return way.rows_out(way.rows_in(rows_TD, rows_TD.dtype))


def _rates(size: int, device: torch.device) -> Iterator[Figure]:
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    pinned = host_memory(device.type).empty((size,), torch.uint8)
    for name, here in (("pinned", pinned), ("pageable", torch.zeros(size, dtype=torch.uint8))):
        bounds = PREDICTED_GB_PER_S[name] if size >= SIZES[2] else (None, None)
        copies: dict[str, Callable[[], Any]] = {
            "to": partial(there.copy_, here, non_blocking=True),
            "from": partial(here.copy_, there, non_blocking=True),
        }
        for way, copy in copies.items():
            rate = size / wall_us(copy, device) / 1e3
            yield Figure(f"{size / 1024:,.0f} KB {way} the device, {name}", rate, "GB/s", *bounds)


# -- waiting ---------------------------------------------------------------------------------------


def _waiting(device: torch.device) -> Iterator[Figure]:
    numbers = list(range(16))
    sent_ms = _wall_ms(lambda: torch.tensor(numbers, device=device), device)
    yield Figure(f"a list sent behind {BUSY_S * 1e3:.0f} ms of work", sent_ms, "ms", 15, 30)
    for name, blocking in (("spinning", False), ("asleep", True)):
        burnt_s, late_us = _waited(EVENT(blocking=blocking), device)
        bounds = (0.0, 0.2) if blocking else (0.8, 1.1)
        yield Figure(f"core burnt while {name}", burnt_s / BUSY_S, "of the wait", *bounds)
        yield Figure(f"wait of {BUSY_S * 1e3:.0f} ms ends late, {name}", late_us, "us", -2e3, 1e3)


def _wall_ms(call: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds until a call returns that is made while the card is busy."""
    _keep_busy(device)
    began = time.perf_counter()
    call()
    elapsed = time.perf_counter() - began
    wait(device)
    return elapsed * 1e3


def _waited(event: Any, device: torch.device) -> tuple[float, float]:
    """Processor seconds of a wait, and microseconds that it ends after the card's work: means."""
    burnt, late = 0.0, 0.0
    for _ in range(WAITS):
        begun, ended = EVENT(enable_timing=True), EVENT(enable_timing=True)
        wait(device)
        began, cpu = time.perf_counter(), time.process_time()
        begun.record()
        _keep_busy(device)
        ended.record()
        event.record()
        event.synchronize()
        burnt += time.process_time() - cpu
        late += (time.perf_counter() - began) * 1e6 - begun.elapsed_time(ended) * 1e3
    return burnt / WAITS, late / WAITS


def _keep_busy(device: torch.device) -> None:
    """Let the card do nothing for a while, by its clock of between one and three GHz."""
    rate: Any = getattr(torch.cuda.get_device_properties(device), "clock_rate", 1_700_000)
    sleep: Any = torch.cuda._sleep
    sleep(int(BUSY_S * rate * 1e3))


if __name__ == "__main__":
    main()
