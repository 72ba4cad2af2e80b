"""How far a cluster's first ring has come, and that Ctrl-C is heard."""

import asyncio
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from molink.cli import cluster_status
from molink.cli.cluster_status import (
    CONNECTING,
    ENDING,
    LOADING,
    STARTING,
    announcing_end,
    until_loaded,
)
from molink.terminal.status_line import StatusLine


async def test_each_stage_tells_its_phase(monkeypatch):
    names, ready = [], asyncio.Event()
    ring = SimpleNamespace(fractions={})

    class Bar:
        def __init__(self, parts, total, unit, *, quiet):
            names.extend(parts)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def rename(self, name, part):
            names[part] = name

        def reach(self, fraction, part):
            pass

    monkeypatch.setattr(cluster_status, "WorkProgress", Bar)
    monkeypatch.setattr(cluster_status, "LOOK_S", 0.001)
    service = SimpleNamespace(until_ready=ready.wait)
    cluster = SimpleNamespace(rings=[ring], service=service)
    waiting = asyncio.ensure_future(until_loaded(cluster, 3))
    await asyncio.sleep(0.01)
    assert names == [f"stage {index} {STARTING}" for index in range(3)]
    ring.fractions = {0: 0.5, 1: 1.0}
    await asyncio.sleep(0.02)
    assert names == [f"stage 0 {LOADING}", f"stage 1 {CONNECTING}", f"stage 2 {STARTING}"]
    ready.set()
    await waiting


async def test_an_end_in_order_is_told_before_it_is_done():
    written = io.StringIO()
    shown = StatusLine(Console(file=written))

    async def work():
        with announcing_end(shown):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written.getvalue().strip() == ENDING
