"""Do the tokens of others stall while long prompts arrive?

    python -m tools.experiments.links.contention MODEL --out DIR

Some streams decode all the time: first alone, then with a long prompt every few seconds. What
counts is the gap between two tokens of a stream as its user sees it, and what the prompts' users
wait for their first token. About a minute for each policy and round.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from molink.bench.served_ring import ServedRing
from molink.workload.figures import percentile, spread
from molink_sim.report.plots import colour, cumulative, logarithmic, picture
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
from tools.experiments.harness.loads import Gap, decoding, first_token_s, prompts_every
from tools.experiments.harness.serving import serving

__all__ = [
    "contend",
    "contention_options",
    "gap_shares",
    "gaps_over_time",
    "last_rounds",
    "main",
]

STREAM_TOKENS = 1000
PROMPT_OUTPUT_TOKENS = 2
SETTLE_S = 2.0
"""After the streams flow, before anything counts."""


Samples = Mapping[str, Mapping[str, Any]]
"""What a picture is drawn from, by policy: `gaps_ms` as (s, ms), `loaded_ms`."""

SMALL_POINTS = 8
"""Size of a legend's letters."""


def contention_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `contend` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--streams", default=6, show_default=True, help="Answers that decode."),
    click.option("--prompt-tokens", default=1500, show_default=True, help="Of each long prompt."),
    click.option("--period-s", default=2.0, show_default=True, help="Between two prompts."),
    click.option("--quiet-s", default=12.0, show_default=True, help="Without prompts."),
    click.option("--loaded-s", default=32.0, show_default=True, help="With prompts."),
)


@ring_experiment()
@contention_options
def main(setup: Setup, **own: Any) -> None:
    """Measure the gaps between tokens of MODEL without and with long prompts beside them."""

    async def measure(condition: Condition, number: int) -> Measured:
        async with serving(setup, condition, number) as ring:
            return await contend(ring, **own)

    runs = in_turn(policy_conditions(), setup.rounds, measure)
    middle = write_results("contention", setup, own, runs)
    show(_table(middle))
    _draw(setup.out / "contention.png", setup, runs, own["quiet_s"])


async def contend(
    ring: ServedRing,
    *,
    streams: int,
    prompt_tokens: int,
    period_s: float,
    quiet_s: float,
    loaded_s: float,
) -> Measured:
    """Load a ring with streams, then with prompts beside them. Raises UserError when the run is
    void."""
    async with decoding(ring, streams, STREAM_TOKENS) as seen:
        start_s = time.perf_counter() + SETTLE_S
        await ring.sleep_until(start_s + quiet_s)
        prompts = await prompts_every(ring, period_s, loaded_s, prompt_tokens, PROMPT_OUTPUT_TOKENS)
        loaded_from_s, end_s = prompts[0].start_s, time.perf_counter()
        quiet = seen.gaps(start_s, loaded_from_s)
        loaded = seen.gaps(loaded_from_s, end_s)
        longest_s = seen.longest_gap_s(loaded_from_s, end_s)
    waits = [first_token_s(prompt) for prompt in prompts]
    figures = _figures(quiet, loaded, waits) | {"longest_gap_s": longest_s}
    figures["tokens_per_s"] = len(loaded) / (end_s - loaded_from_s)
    shifted = [(at - start_s, 1e3 * gap) for at, gap in [*quiet, *loaded]]
    return Measured(figures, {"gaps_ms": shifted, "loaded_ms": [1e3 * gap for _, gap in loaded]})


def _figures(quiet: list[Gap], loaded: list[Gap], waits: list[float]) -> Figures:
    alone, beside = (sorted(gap for _, gap in gaps) for gaps in (quiet, loaded))
    p50, p99, p99_beside = (
        percentile(alone, 50),
        percentile(alone, 99),
        percentile(beside, 99),
    )
    ttft = {f"ttft_{name}_s": value or 0.0 for name, value in spread(waits).items()}
    return {
        "gap_alone_p50_s": p50,
        "gap_alone_p99_s": p99,
        "gap_beside_p50_s": percentile(beside, 50),
        "gap_beside_p99_s": p99_beside,
        "p99_beside_to_p50_alone": p99_beside / p50,
        "p99_beside_to_p99_alone": p99_beside / p99,
        **ttft,
    }


def _table(middle: dict[str, Figures]) -> str:
    head = (
        "policy",
        "gap alone p50 / p99, ms",
        "with prompts p50 / p99, ms",
        "p99 with prompts / p50 alone",
        "/ p99 alone",
        "longest gap, ms",
        "TTFT of the prompts mean / p50 / p95, ms",
    )
    return markdown_table(head, [_row(name, figures) for name, figures in middle.items()])


def _row(name: str, figures: Figures) -> list[str]:
    def pair(*keys: str) -> str:
        return " / ".join(milliseconds(figures[key]) for key in keys)

    return [
        f"`{name}`",
        pair("gap_alone_p50_s", "gap_alone_p99_s"),
        pair("gap_beside_p50_s", "gap_beside_p99_s"),
        f"{figures['p99_beside_to_p50_alone']:.2f}",
        f"{figures['p99_beside_to_p99_alone']:.2f}",
        pair("longest_gap_s"),
        pair("ttft_mean_s", "ttft_p50_s", "ttft_p95_s"),
    ]


def _draw(path: Path, setup: Setup, runs: Runs, quiet_s: float) -> None:
    title = f"Gaps between tokens of streams, link {setup.link} (last round)"
    with picture(path, 2, title) as (over_time, shares):
        gaps_over_time(over_time, last_rounds(runs), quiet_s)
        gap_shares(shares, last_rounds(runs))
        logarithmic(over_time, "y")
        logarithmic(shares, "x")


# Several calls may draw into one panel; its axis is made logarithmic when all have drawn.


def last_rounds(runs: Runs) -> Samples:
    """The samples that are drawn: more rounds would lie on top of one another."""
    return {name: measured[-1].samples for name, measured in runs.items()}


def gaps_over_time(axes: Any, samples: Samples, quiet_s: float) -> None:
    """One dot for each gap; long prompts come from `quiet_s` on."""
    for number, (name, seen) in enumerate(samples.items()):
        times, gaps = zip(*sorted(seen["gaps_ms"]), strict=True)
        axes.plot(times, gaps, ".", ms=2, label=name, color=colour(name, number))
    axes.axvline(quiet_s, color="#444444", lw=0.8, ls="--")
    axes.set(xlabel="s (prompts from the dashed line on)", ylabel="gap, ms")
    axes.legend(fontsize=SMALL_POINTS, markerscale=4)


def gap_shares(axes: Any, samples: Samples, kind: str = "", line: str = "-") -> None:
    """Cumulative, of the gaps with prompts; `kind` and `line` tell apart what is drawn over."""
    for number, (name, seen) in enumerate(samples.items()):
        cumulative(axes, seen["loaded_ms"], f"{name}{kind}", colour(name, number), line)
    axes.set(xlabel="gap with prompts, ms", ylabel="share of gaps")
    axes.legend(fontsize=SMALL_POINTS)


if __name__ == "__main__":
    main()
