"""What does one decision about a link cost while a thousand transfers wait?

    python -m tools.experiments.links.deciding_cost --out DIR

Times `next_chunk` alone, for every policy, on a queue that is kept full: whatever leaves completely
is replaced outside the measured time. Prefill and decode wait in equal numbers, which is the most
expensive case: every decision has both to consider and the bounds on starvation to check.
"""

import itertools
import statistics
import time
from pathlib import Path

import click

from molink.workload.figures import percentile
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.transmission import (
    LinkView,
    Transfer,
    TransmissionQueue,
)
from molink_sim.network.policies import POLICIES, make_queue
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    show,
    write_report,
)

__all__ = ["main"]

WARM_UP_DECISIONS = 2_000
"""Enough for the interpreter to have specialised the code that is measured."""

SIZE_BYTES = {BatchClass.DECODE: 9_216, BatchClass.PREFILL: 196_608}
"""Six rows, and a span of 128 tokens, of a 768-wide model at 16 bits."""

STEP_S = 0.001
"""Virtual time between two decisions, so that the bound in milliseconds is reached as well."""


@experiment
@click.option("--waiting", default=1_000, show_default=True, help="Transfers that wait.")
@click.option("--decisions", default=50_000, show_default=True, help="Decisions to time.")
def main(out: Path, waiting: int, decisions: int) -> None:
    """Print median and p99 of one decision in microseconds, for every policy."""
    figures = {policy: _figures(_timed_ns(policy, waiting, decisions)) for policy in POLICIES}
    show(_table(figures))
    report = {"waiting": waiting, "decisions": decisions, "microseconds": figures}
    write_report(out, "deciding_cost", report)


def _timed_ns(policy: str, waiting: int, decisions: int) -> list[int]:
    """Nanoseconds of each decision on a queue in which `waiting` transfers always wait."""
    queue, ids, now = make_queue(policy), itertools.count(), 0.0
    for _ in range(waiting):
        _offer(queue, next(ids), now)
    timed: list[int] = []
    for _ in range(WARM_UP_DECISIONS + decisions):
        link = LinkView(2.5e6, 20_000, next_decode_due_at=now + 0.05)
        began = time.perf_counter_ns()
        chunk = queue.next_chunk(now, link)
        timed.append(time.perf_counter_ns() - began)
        if chunk is not None and chunk.last:
            _replace(queue, next(ids), chunk.batch_class, now)
        now += STEP_S
    return timed[WARM_UP_DECISIONS:]


def _offer(queue: TransmissionQueue, transfer_id: int, now: float) -> None:
    _replace(queue, transfer_id, BatchClass(transfer_id % 2), now)


def _replace(
    queue: TransmissionQueue, transfer_id: int, batch_class: BatchClass, now: float
) -> None:
    queue.offer(Transfer(transfer_id, batch_class, SIZE_BYTES[batch_class]))


def _figures(timed_ns: list[int]) -> Figures:
    ordered = sorted(nanoseconds / 1_000 for nanoseconds in timed_ns)
    return {
        "median": round(statistics.median(ordered), 2),
        "p99": round(percentile(ordered, 99), 2),
        "max": round(ordered[-1], 1),
    }


def _table(figures: dict[str, Figures]) -> str:
    rows = [[policy, *map(str, times.values())] for policy, times in figures.items()]
    return markdown_table(("policy", "median, us", "p99", "max"), rows)


if __name__ == "__main__":
    main()
