"""How long does one long prompt take on an idle ring, against what physics allows?

    python -m tools.experiments.ring.ttft_alone MODEL --out DIR

The floor is what cannot be avoided with raw activations: their bytes at the link's rate, one
stage's compute of the whole prompt, and three delays. Compute is the least of any condition in the
round: stages that compute at the same time on shared cores count time that is not theirs. All else
(a second hop that waits for the first, a second stage that waits for the first) can overlap, and
does when the prompt travels in spans. Prompts that are sent whole stand beside it. About half a
minute for each condition and round.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from molink.bench.served_ring import ServedRing
from molink.workload.figures import percentile
from molink_sim.report.plots import colour, picture
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
from tools.experiments.harness.loads import first_token_s
from tools.experiments.harness.serving import link_of, serving

__all__ = ["main"]

DELAYS = 3
"""The floor's; an emulated ring has four on this way, the coordinator's link to the head too."""

WHOLE = ("--span-tokens", "4096")


@ring_experiment()
@click.option("--prompt-tokens", default=1500, show_default=True, help="Of the prompt.")
@click.option("--prompts", default=5, show_default=True, help="One after the other.")
@click.option("--pause-s", default=0.5, show_default=True, help="Between two of them.")
def main(setup: Setup, **own: Any) -> None:
    """Measure the time to first token of single long prompts on an idle ring."""

    async def measure(condition: Condition, number: int) -> Measured:
        return await _measure(setup, condition, number, **own)

    raw = policy_conditions("--wire", "raw")
    whole_options = ("--wire", "raw", *WHOLE)
    whole = replace(raw[0], name="molink, whole prompt", options=whole_options)
    whole_fifo = replace(raw[1], name="fifo, whole prompt", options=whole_options)
    runs = in_turn([*raw, whole, whole_fifo], setup.rounds, measure)
    _add_floors(runs)
    middle = write_results("ttft_alone", setup, own, runs)
    show(_table(middle))
    _draw(setup.out / "ttft_alone.png", setup, middle)


async def _measure(
    setup: Setup,
    condition: Condition,
    number: int,
    *,
    prompt_tokens: int,
    prompts: int,
    pause_s: float,
) -> Measured:
    async with serving(setup, condition, number) as ring:
        before = await ring.settled_cluster()
        waits = await _one_by_one(ring, prompt_tokens, prompts, pause_s)
        after = await ring.settled_cluster()
    bytes_each = (_sent_bytes(after) - _sent_bytes(before)) / prompts
    return Measured(
        {
            "ttft_p50_s": percentile(sorted(waits), 50),
            "ttft_worst_s": max(waits),
            "wire_s": bytes_each / (setup.link_mbps * 1e6 / 8),
            "delays_s": DELAYS * setup.one_way_s,
            "compute_s": max(_busy_s(before, after)) / prompts,
        }
    )


def _add_floors(runs: Runs) -> None:
    """To every run, with the least wire and compute time of its round."""
    for together in zip(*runs.values(), strict=True):
        least = {
            key: min(one.figures[key] for one in together)
            for key in ("wire_s", "delays_s", "compute_s")
        }
        floor_s = sum(least.values())
        for one in together:
            to_floor = one.figures["ttft_p50_s"] / floor_s
            one.figures.update(floor_s=floor_s, to_floor=to_floor)


async def _one_by_one(ring: ServedRing, tokens: int, prompts: int, pause_s: float) -> list[float]:
    waits = []
    for _ in range(prompts):
        waits.append(first_token_s(await ring.ask(tokens, 1)))
        await asyncio.sleep(pause_s)
    return waits


def _sent_bytes(report: dict[str, Any]) -> float:
    """What the first hop has carried; every hop between stages carries the same."""
    return float(link_of(report, "stage 0", "stage 1")["bytes_sent"])


def _busy_s(before: dict[str, Any], after: dict[str, Any]) -> list[float]:
    pairs = zip(before["stages"], after["stages"], strict=True)
    return [float(late["busy_s"] - early["busy_s"]) for early, late in pairs]


def _table(middle: dict[str, Figures]) -> str:
    head = ("", "TTFT, ms", "worst, ms", "one stage busy, ms", "floor, ms", "TTFT / floor")
    keys = ("ttft_p50_s", "ttft_worst_s", "compute_s", "floor_s")
    rows = [
        [name, *(milliseconds(figures[key]) for key in keys), f"{figures['to_floor']:.2f}"]
        for name, figures in middle.items()
    ]
    return markdown_table(head, rows)


def _draw(path: Path, setup: Setup, middle: dict[str, Figures]) -> None:
    with picture(path, 1, f"One long prompt on an idle ring, link {setup.link}") as (axes,):
        for place, (name, figures) in enumerate(middle.items()):
            shade = colour(name.split(",")[0], place)
            axes.barh(place, figures["ttft_p50_s"], color=shade, height=0.6)
        floor_s = min(figures["floor_s"] for figures in middle.values())
        axes.axvline(floor_s, color="#444444", ls="--", lw=1, label="floor")
        axes.set_yticks(range(len(middle)), list(middle), fontsize=8)
        axes.set(xlabel="time to first token, s")
        axes.invert_yaxis()
        axes.legend(fontsize=7)


if __name__ == "__main__":
    main()
