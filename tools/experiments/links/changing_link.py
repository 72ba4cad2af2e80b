"""Does the sender follow a link that changes while it is used?

    python -m tools.experiments.links.changing_link MODEL --out DIR

20 Mbps, after 20 s 5, after 40 s 20 again, while streams decode and prompts keep the first hop
full. The estimate is read from GET /cluster five times a second; the queue at the bottleneck is not
taken from there but from the kernel's counters at both ends of the hop. The emulated links' time
begins before the server is ready, so the steps are put off by a lead that is checked. A little over
a minute for each policy and round.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from molink.bench.served_ring import ServedRing
from molink.errors import UserError
from molink.workload.figures import percentile
from molink_sim.report.plots import colour, logarithmic, picture
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Runs,
    Setup,
    in_turn,
    markdown_table,
    milliseconds,
    policy_conditions,
    ring_experiment,
    show,
    write_results,
)
from tools.experiments.harness.loads import Streams, decoding, prompts_always
from tools.experiments.harness.serving import emulator_started_s, logging_cluster, serving
from tools.experiments.harness.traffic import Traffic, queueing_s, watching

__all__ = ["LinkSteps", "main"]

STREAM_TOKENS = 1000
PROMPTS_UNDER_WAY = 3
"""One computes, one is on the wire, one waits: the first hop never runs dry."""

LEARNED_S = 3.0
"""After a change the estimate must be right by then."""

Series = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LinkSteps:
    """A link whose rate changes in equal steps, the first of them longer by a lead.

    Times count from the end of the lead.
    """

    rates_mbps: tuple[float, ...]
    step_s: float
    lead_s: float
    one_way_s: float

    @property
    def changes_s(self) -> list[float]:
        """When the rate changes."""
        return [number * self.step_s for number in range(1, len(self.rates_mbps))]

    @property
    def duration_s(self) -> float:
        """From the end of the lead to that of the last step."""
        return len(self.rates_mbps) * self.step_s

    def is_steady(self, at_s: float, after_s: float) -> bool:
        """Whether the last change (or the beginning of the load) is `after_s` ago."""
        return at_s < self.duration_s and at_s % self.step_s >= after_s

    def write(self, path: Path) -> None:
        """As `molink serve --link FILE` reads it: times from the emulator's start."""
        starts = [0.0, *(self.lead_s + change_s for change_s in self.changes_s)]
        rows = [
            f"{at_s:g},{mbps:g},{self.one_way_s * 1000:g}"
            for at_s, mbps in zip(starts, self.rates_mbps, strict=True)
        ]
        path.write_text("\n".join(["t_s,mbps,one_way_ms", *rows]) + "\n")


@ring_experiment()
@click.option("--steps", default="20,5,20", show_default=True, help="Mbps, one after the other.")
@click.option("--step-s", default=20.0, show_default=True, help="How long each lasts.")
@click.option("--lead-s", default=12.0, show_default=True, help="For the ring to get ready.")
@click.option("--streams", default=4, show_default=True, help="Answers that decode.")
@click.option("--prompt-tokens", default=1500, show_default=True, help="Of each prompt.")
def main(setup: Setup, steps: str, step_s: float, lead_s: float, **load: Any) -> None:
    """Change the rate of all links under load and see what the sender makes of it."""
    rates = tuple(float(one) for one in steps.split(","))
    link = LinkSteps(rates, step_s, lead_s, setup.one_way_s)
    link.write(setup.out / "changing_link.steps.csv")

    async def measure(condition: Condition, number: int) -> Measured:
        return await _measure(setup, condition, number, link, **load)

    runs = in_turn(policy_conditions("--wire", "raw"), setup.rounds, measure)
    own = {"steps": steps, "step_s": step_s, "lead_s": lead_s, **load}
    middle = write_results("changing_link", setup, own, runs)
    show(_table(middle, link))
    _draw(setup.out / "changing_link.png", runs, link)


async def _measure(
    setup: Setup,
    condition: Condition,
    number: int,
    link: LinkSteps,
    *,
    streams: int,
    prompt_tokens: int,
) -> Measured:
    steps_file = str(setup.out / "changing_link.steps.csv")
    async with (
        serving(setup, condition, number, steps_file) as ring,
        decoding(ring, streams, STREAM_TOKENS) as seen,
        watching(ring) as traffic,
        logging_cluster(ring) as log,
    ):
        zero_s = await _until_zero(ring, link)
        prompts = await prompts_always(ring, PROMPTS_UNDER_WAY, link.duration_s, prompt_tokens)
        rates = _since(zero_s, log.series("stage 0", "stage 1", "rate_mbps"))
        believed = _since(zero_s, log.series("stage 0", "stage 1", "queueing_delay_ms"))
        stall_s = seen.longest_gap_s(zero_s, zero_s + link.duration_s)
    queue = _since(zero_s, _queue(traffic, setup))
    figures = _errors(rates, link) | _queue_figures(queue, believed, link)
    figures |= {"longest_gap_s": stall_s, "prompts": float(len(prompts))}
    return Measured(figures, {"rate": rates, "queue": queue, "gaps": _gaps(seen, zero_s)})


async def _until_zero(ring: ServedRing, link: LinkSteps) -> float:
    """Wait for the end of the lead; when that is, on our clock."""
    zero_s = emulator_started_s(ring) + link.lead_s
    if time.perf_counter() > zero_s:
        raise UserError("the ring took longer to get ready than --lead-s: raise it")
    await ring.sleep_until(zero_s)
    return zero_s


def _since(zero_s: float, series: Series) -> Series:
    return [(at - zero_s, value) for at, value in series if at >= zero_s]


def _gaps(seen: Streams, zero_s: float) -> Series:
    """Gaps between tokens, in ms."""
    return [(at - zero_s, 1e3 * gap) for at, gap in seen.gaps(zero_s, float("inf"))]


def _queue(traffic: Traffic, setup: Setup) -> Series:
    """The queue of the first hop, in seconds."""
    hop = traffic.hops[0]
    return queueing_s(traffic.times_s, hop.sent, hop.received, setup.one_way_s)


def _errors(rates: Series, link: LinkSteps) -> Figures:
    """How far the estimate is off, some seconds after each change, as a share of the truth."""
    found = {}
    for change_s, (old, new) in zip(link.changes_s, pairwise(link.rates_mbps), strict=True):
        estimate = next((mbps for at, mbps in rates if at >= change_s + LEARNED_S), 0.0)
        found[f"error_after_{old:g}_to_{new:g}"] = abs(estimate - new) / new
    return found


def _queue_figures(queue: Series, believed: Series, link: LinkSteps) -> Figures:
    """`believed` is what the sender's estimate is, in ms."""
    steady = [delay for at, delay in queue if link.is_steady(at, LEARNED_S)]
    estimates = [delay_ms / 1e3 for at, delay_ms in believed if link.is_steady(at, LEARNED_S)]
    return {
        "queue_p50_s": percentile(sorted(steady), 50),
        "queue_p95_s": percentile(sorted(steady), 95),
        "queue_p95_with_changes_s": percentile(sorted(delay for _, delay in queue), 95),
        "queue_p95_told_s": percentile(sorted(estimates), 95),
    }


def _table(middle: dict[str, Figures], link: LinkSteps) -> str:
    errors = [f"{old:g} to {new:g}" for old, new in pairwise(link.rates_mbps)]
    head = (
        "policy",
        *(f"estimate off {LEARNED_S:g} s after {one} Mbps" for one in errors),
        "longest silence of a stream, ms",
        "queue p50 / p95, ms",
        "p95, changes included",
        "p95 as the sender tells it",
    )
    rows = [
        [
            f"`{name}`",
            *(f"{value:.0%}" for key, value in figures.items() if key.startswith("error_after")),
            milliseconds(figures["longest_gap_s"]),
            f"{milliseconds(figures['queue_p50_s'])} / {milliseconds(figures['queue_p95_s'])}",
            milliseconds(figures["queue_p95_with_changes_s"]),
            milliseconds(figures["queue_p95_told_s"]),
        ]
        for name, figures in middle.items()
    ]
    return markdown_table(head, rows)


def _draw(path: Path, runs: Runs, link: LinkSteps) -> None:
    with picture(path, 3, "A link that changes (last round)") as (rate, queue, gaps):
        for number, (name, measured) in enumerate(runs.items()):
            samples, shade = measured[-1].samples, colour(name, number)
            rate.plot(*zip(*samples["rate"], strict=True), label=name, color=shade, lw=1)
            waits_ms = [(at, max(1.0, 1e3 * wait_s)) for at, wait_s in samples["queue"]]
            queue.plot(*zip(*waits_ms, strict=True), ".", ms=1, color=shade)
            gaps.plot(*zip(*samples["gaps"], strict=True), ".", ms=2, color=shade)
        edges = [*link.changes_s, link.duration_s]
        rate.stairs(link.rates_mbps, [0.0, *edges], color="#444444", ls="--", label="truth")
        rate.set(xlabel="s", ylabel="estimate, Mbps", ylim=(0, 1.5 * max(link.rates_mbps)))
        queue.set(xlabel="s", ylabel="queue at the bottleneck, ms")
        gaps.set(xlabel="s", ylabel="gap between tokens, ms")
        for axes in (queue, gaps):
            logarithmic(axes, "y")
        rate.legend(fontsize=8)


if __name__ == "__main__":
    main()
