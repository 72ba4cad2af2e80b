"""Is a plan for uneven PCs as good as it says, and how much better than equal shares?

    python tools/random_llama.py MODEL 12 32768
    python -m tools.experiments.ring.uneven_nodes MODEL --out DIR

Three agents lend memory as 1 : 2 : 4 and threads as 1 : 1 : 2; the smallest has little room beside
its equal share of the layers, and the largest cannot hold the model alone. A real `molink up`
serves in turn the plan's split and equal shares, loaded with as many users as the forecast names,
with one user, and with as many users as the better plan has room for. What is held against the
forecast is the time between tokens (TPOT).

All agents share this machine. Two things keep that from spoiling the comparison: they join one
after the other, so that none times a layer while another computes, and the ring has a single
micro-batch, so that its stages compute one after the other, as their PCs would. Prompts are short
beside the answers, because they are what stages compute at the same time.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from molink.bench.load import LoadSettings
from molink.errors import UserError
from tools.experiments.harness.agents import AgentsRun, agents_run, get_json, is_timed
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Runs,
    experiment,
    in_turn,
    markdown_table,
    medians,
    milliseconds,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.harness.serving import run_whole_load

__all__ = ["main"]

SPLITS = ("planned", "even")
SHARES, THREADS = (2, 1, 4), (1, 1, 2)
"""Memory and threads of the agents in the order in which they join: an even split has the smallest
in the middle, where it needs no table of words."""

PROMPT_TOKENS, ANSWER_TOKENS = 32, 224
CONTEXT_TOKENS = PROMPT_TOKENS + ANSWER_TOKENS

REQUESTS_EACH = 3
"""A forecast is of users who come and go. When all ask once in the same moment, the first to be
answered share the ring with few, and the last too: a time per token that no steady load has."""

MEASURED_WITHIN_S, READY_WITHIN_S = 120.0, 120.0

SETTLE_S = 3.0
"""After the last agent was timed: the routes between them are measured, a second for each."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options as typed."""

    model: str
    memory_gb: float
    tpot_ms: float


@experiment
@click.argument("model")
@click.option("--memory-gb", default=0.059, show_default=True, help="Lent by the smallest agent.")
@click.option("--tpot-ms", default=250.0, show_default=True, help="Bound of the plan.")
@rounds_option(2)
def main(out: Path, rounds: int, **own: Any) -> None:
    """Compare MODEL's planned and even split over three uneven agents."""
    settings = Settings(**own)

    async def measure(split: Condition, number: int) -> Measured:
        measured = await _measured(settings, split.name)
        return Measured(_figures(measured), measured)

    runs = in_turn([Condition(split) for split in SPLITS], rounds, measure)
    middle = medians(runs)
    gain = middle["planned"]["tokens_per_s"] / middle["even"]["tokens_per_s"]
    show(f"{_table(middle, runs)}\n\nplanned to even: {gain:.2f} x")
    report = {
        "settings": asdict(settings) | {"model": Path(settings.model).name},
        "load": {"prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS},
        "planned_to_even": gain,
        "medians": middle,
        "runs": {split: [run.samples for run in measured] for split, measured in runs.items()},
    }
    write_report(out, "uneven_nodes", report)


async def _measured(settings: Settings, split: str) -> dict[str, Any]:
    """One cluster from its start to its end."""
    bound = ("--tpot-ms", f"{settings.tpot_ms:g}", "--micro-batches", "1")
    load = (
        *("--context-tokens", str(CONTEXT_TOKENS)),
        *("--prompt-tokens", str(PROMPT_TOKENS), "--answer-tokens", str(ANSWER_TOKENS)),
    )
    count = str(len(SHARES))
    with agents_run(settings.model, ("--split", split, "--min-nodes", count, *bound, *load)) as run:
        for number, (share, threads) in enumerate(zip(SHARES, THREADS, strict=True)):
            lent = ("--memory-gb", f"{share * settings.memory_gb:g}", "--threads", str(threads))
            run.join(f"pc{number}", "--device", "cpu", *lent)
            run.wait(lambda report: _timed(report) > number, MEASURED_WITHIN_S)  # noqa: B023
            await asyncio.sleep(SETTLE_S)
        serving = run.wait(lambda report: report["unready_reason"] is None, READY_WITHIN_S)
        return await _loaded(run, serving)


async def _loaded(run: AgentsRun, serving: dict[str, Any]) -> dict[str, Any]:
    ring, best = _only(serving["rings"]), _only(_plan(run.url, "planned")["rings"])
    users, most = max(1, ring["forecast"]["users"]), max(1, best["users"])
    alone = await _load(run.url, 1)
    own = await _load(run.url, users)
    stages = get_json(f"{run.url}/cluster")["rings"][0]["stages"]
    many = own if most == users else await _load(run.url, most)
    if [one["ring"] for one in get_json(f"{run.url}/cluster")["rings"]] != [ring["ring"]]:
        raise UserError("the ring was changed while it was loaded: the machine was busy, perhaps")
    return {
        "forecast": ring["forecast"],
        "layers": {node["name"]: node["layers"] for node in serving["nodes"] if node["layers"]},
        "steps": {node["name"]: node["profile"]["steps"] for node in serving["nodes"]},
        "stages_after_own_load": stages,
        "users_of_planned": most,
        "alone": alone,
        "own": own,
        "many": many,
    }


def _only(rings: list[dict[str, Any]]) -> dict[str, Any]:
    if len(rings) != 1:
        raise UserError("the largest agent can serve alone: take a model with larger tables")
    return rings[0]


async def _load(url: str, users: int) -> dict[str, Any]:
    """Each user asks some times, one request after the other."""
    requests = users * REQUESTS_EACH
    return await run_whole_load(LoadSettings(url, users, requests, PROMPT_TOKENS, ANSWER_TOKENS))


def _timed(report: dict[str, Any]) -> int:
    return sum(is_timed(node) for node in report["nodes"])


def _plan(url: str, split: str) -> dict[str, Any]:
    answer = get_json(f"{url}/plan?split={split}")
    if "shortage" in answer:
        raise UserError(f"the agents lend too little: {answer['shortage']}")
    plan: dict[str, Any] = answer["plan"]
    return plan


# -- figures -----------------------------------------------------------------------------------


def _figures(measured: dict[str, Any]) -> Figures:
    forecast = measured["forecast"]
    return {
        "users": forecast["users"],
        "tpot_forecast_s": forecast["tpot_s"],
        "tpot_s": measured["own"]["tpot_s"]["mean"],
        "alone_forecast_s": forecast["tpot_alone_s"],
        "alone_s": measured["alone"]["tpot_s"]["mean"],
        "tokens_per_s": measured["many"]["tokens_per_s"],
        "tokens_per_s_own": measured["own"]["tokens_per_s"],
        "tokens_per_s_forecast": forecast["tokens_per_s"],
    }


def _table(middle: dict[str, Figures], runs: Runs) -> str:
    return markdown_table(
        [
            *("split", "layers", "users within the bound", "TPOT forecast, ms", "measured", "off"),
            *("one user: forecast, ms", "measured", "off", "tokens/s, equal load"),
        ],
        list(_rows(middle, runs)),
    )


def _rows(middle: dict[str, Figures], runs: Runs) -> Iterator[list[str]]:
    for split, figures in middle.items():
        yield [
            split,
            _layers(runs[split][0].samples["layers"]),
            f"{figures['users']:.0f}",
            *_against(figures["tpot_forecast_s"], figures["tpot_s"]),
            *_against(figures["alone_forecast_s"], figures["alone_s"]),
            f"{figures['tokens_per_s']:.0f}",
        ]


def _layers(held: dict[str, list[int]]) -> str:
    ordered = sorted(held.items(), key=lambda entry: entry[1])
    return ", ".join(f"{name} {end - start}" for name, (start, end) in ordered)


def _against(forecast_s: float, measured_s: float) -> list[str]:
    off = measured_s / forecast_s - 1
    return [milliseconds(forecast_s), milliseconds(measured_s), f"{off:+.0%}"]


if __name__ == "__main__":
    main()
