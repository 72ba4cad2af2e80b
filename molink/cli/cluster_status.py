"""A running cluster in its command's terminal: its events, its present state, how far it loads."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from molink.tasks import background_tasks
from molink.terminal.progress import WorkProgress
from molink.terminal.status_line import StatusLine

if TYPE_CHECKING:
    from molink.coordinator.cluster import Cluster
    from molink.coordinator.reports.cluster_news import ClusterNews

LOOK_S = 0.5
"""Between two looks at how far the weights are."""

STATUS_S = 1.0
"""Between two looks at the present state, for the person in front of it."""

ENDING = "Ending in order: some seconds."

STARTING, LOADING, CONNECTING = (
    "starts and checks what it computes",
    "loads its weights",
    "waits until all are connected",
)
"""What a stage does before it has begun to load, until it has, and then."""

HIDDEN_KINDS = frozenset({"request_moved"})
"""Kinds of events that are too many for a terminal: a ring may lose a thousand requests at once."""


async def show_news(news: "ClusterNews", shown: StatusLine, *, after_start: bool = False) -> None:
    """Show what happens, until cancelled; with `after_start` without what has happened so far."""
    seq, events = 0, news.events
    if after_start:
        news.look()
        seq = events.last_seq
    while True:
        for event in events.after(seq):
            if event.kind not in HIDDEN_KINDS:
                shown.event(event.text, kind=event.kind, node=event.node, ring=event.ring)
        seq = events.last_seq
        shown.status(news.now)
        with suppress(TimeoutError):
            async with asyncio.timeout(STATUS_S):
                await events.changed.wait()


@contextmanager
def announcing_end(shown: StatusLine) -> Iterator[None]:
    """Say when the block is cancelled, as by Ctrl-C, that what it started is ended in order."""
    try:
        yield
    except asyncio.CancelledError:
        shown.hint(ENDING)
        raise


async def until_loaded(cluster: "Cluster", stage_count: int, *, shown: bool = True) -> None:
    """Show how far a cluster's first ring has loaded, until it serves."""
    parts = [f"stage {index} {STARTING}" for index in range(stage_count)]
    with WorkProgress(parts, 1.0, "share", quiet=not shown) as bar:
        async with background_tasks() as tasks:
            tasks.create_task(_follow(cluster, bar))
            await cluster.service.until_ready()


async def _follow(cluster: "Cluster", bar: WorkProgress) -> None:
    while True:
        for ring in cluster.rings:
            for index, fraction in ring.fractions.items():
                bar.rename(f"stage {index} {LOADING if fraction < 1 else CONNECTING}", index)
                bar.reach(fraction, index)
        await asyncio.sleep(LOOK_S)
