"""What do drafts bring in rings that are not at hand, and where do they bring nothing?

    python -m tools.experiments.placement.simulated_drafts --out DIR

The product's head and its widths in virtual time, with a drafter whose every draft is right with a
set chance. *Cards*: gpt-oss-120b on four 4090s, its experts unpacked for each product, as a card is
counted that nobody measured, and read in their own four bits; beside it the forecast of `molink
plan` for a ring whose tail drafts. *Full links*: models of 768 and 4,096 numbers a row where rows
fill links; drafts shall cost nothing there. Tokens per second of all users between the last one's
first token and the first one's end, 32 tokens in; nothing depends on the machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from molink.checkpoint.model_config import KNOWN_CONFIGS, shape_of_config
from molink.checkpoint.model_shape import ModelShape
from molink.config.layer_split import even_split
from molink.hardware.format_times import BILLION, NONE, FormatTimes
from molink.hardware.gpu import Gpu, gpu
from molink.hardware.roofline import estimated_times, stage_cost
from molink_scheduler.batch import DRAFTS_MAX
from molink_scheduler.model_cost import DraftCost
from molink_scheduler.placement import Forecast, Goal, LinkFacts, Network, NodeFacts, forecast
from molink_sim.outcome import Outcome
from molink_sim.scenario import (
    DrafterSpec,
    LinkSpec,
    RequestArrival,
    RingSpec,
    Scenario,
    StageSpec,
    SystemSpec,
)
from molink_sim.simulate import simulate
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

GPT_OSS_120B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4"},
}
"""The parts of openai/gpt-oss-120b's config that decide cost."""

INPUT_TOKENS, OUTPUT_TOKENS, KV_TOKENS = 32, 600, 32_768
WINDOW_S = 10.0
CONTEXT_TOKENS = 332
"""Of a user in the mean of an answer, which a forecast counts with."""

CARD_STEP_S, CPU_STEP_S = 0.003, 0.001
"""A draft step: a layer and an output matrix of 200,000 words on a card; a small model on a CPU."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Equal devices behind equal links."""

    name: str
    shape: ModelShape
    device: Gpu
    stages: int
    mbps: float
    one_way_s: float
    step_s: float

    @property
    def split(self) -> Sequence[tuple[int, int]]:
        """Layers of each stage."""
        return even_split(self.shape.layers, self.stages)

    def spec(self) -> RingSpec:
        """The ring for the simulator."""
        last = self.shape.layers
        costs = (
            (end - start, stage_cost(self.shape, self.device, end - start, not start, end == last))
            for start, end in self.split
        )
        stages = tuple(StageSpec(layers, cost, KV_TOKENS) for layers, cost in costs)
        links = (LinkSpec(self.mbps, self.one_way_s),) * self.stages
        return RingSpec(stages, links, self.shape.row_bytes)

    def forecast(self, users: int) -> Forecast:
        """The forecast of a plan whose tail drafts; its layer weighs as one of the model's."""
        times = estimated_times(self.shape, self.device, CONTEXT_TOKENS)
        nodes = [
            NodeFacts(
                f"n{place}",
                2**40,
                times.decode_fixed_s,
                times.decode_row_s,
                times.prefill_row_s,
                times.step_fixed_s,
                times.head_row_s,
                times.head_fixed_s,
            )
            for place in range(self.stages)
        ]
        cost = self.shape.cost
        layer = DraftCost(self.shape.layer_bytes, self.shape.layer_bytes, cost.kv_bytes)
        network = Network(default=LinkFacts(self.mbps * 125_000, self.one_way_s))
        goal = Goal(context_tokens=CONTEXT_TOKENS, prompt_tokens=0, answer_tokens=OUTPUT_TOKENS)
        counts = [end - start for start, end in self.split]
        return forecast(cost.with_drafts(layer), nodes, counts, network, goal, users)


def run(ring: Ring, users: int, width: int, acceptance: float) -> Outcome:
    """So many users at once, each with one answer."""
    arrivals = [RequestArrival(0.01 * n, INPUT_TOKENS, OUTPUT_TOKENS) for n in range(users)]
    system = SystemSpec(drafter=DrafterSpec(width, acceptance, ring.step_s))
    return simulate(Scenario((ring.spec(),), arrivals, system, duration_s=10_000.0))


def token_times(outcome: Outcome) -> list[float]:
    """Times of tokens while all users have answers, from zero, in order."""
    begin = max(one.token_times_s[0] for one in outcome.requests)
    end = min(one.token_times_s[-1] for one in outcome.requests)
    times = (at for one in outcome.requests for at in one.token_times_s)
    return sorted(at - begin for at in times if begin < at <= end)


def figures(outcome: Outcome) -> dict[str, float]:
    """Tokens per second, in the worst whole window too; tokens a round; the p99 gap of rounds."""
    times = token_times(outcome)
    windows = [0] * int(times[-1] // WINDOW_S)
    for at in times:
        if at < WINDOW_S * len(windows):
            windows[int(at // WINDOW_S)] += 1
    rounds = [sorted(set(one.token_times_s)) for one in outcome.requests]
    gaps = sorted(after - before for one in rounds for before, after in pairwise(one))
    return {
        "tokens_per_s": len(times) / times[-1],
        "worst_tokens_per_s": min(windows, default=0) / WINDOW_S,
        "tokens_a_round": sum(len(one.token_times_s) for one in outcome.requests)
        / sum(map(len, rounds)),
        "p99_gap_s": gaps[int(0.99 * len(gaps))],
    }


def cards() -> Iterable[Ring]:
    """gpt-oss-120b on four 4090s."""
    shape, card = shape_of_config("gpt-oss-120b", GPT_OSS_120B), gpu("rtx4090")
    plain = FormatTimes(BILLION * 2 / card.bytes_per_s, 2 * BILLION / card.flops_per_s)
    packed = replace(card, formats={"mxfp4": NONE.times(shape.weights, 2, plain)})
    for name, device in (("unpacked", card), ("in four bits", packed)):
        yield Ring(name, shape, device, 4, 100.0, 0.03, CARD_STEP_S)


FULL_LINKS = ((20.0, 16), (5.0, 1), (5.0, 4), (5.0, 16))
"""Rates in Mbit/s, and users at once."""


def full_links() -> Iterable[tuple[Ring, int]]:
    """Narrow and wide models over slow links."""
    for model, device in (("llama-88m", "cpu"), ("llama-3-8b", "rtx4090")):
        shape = shape_of_config(model, KNOWN_CONFIGS[model])
        for mbps, users in FULL_LINKS:
            name = f"width {shape.hidden_size:,}, {mbps:g} Mbit/s"
            step_s = CPU_STEP_S if device == "cpu" else CARD_STEP_S
            yield Ring(name, shape, gpu(device), 3, mbps, 0.03, step_s), users


def card_row(ring: Ring, users: int) -> dict[str, Any]:
    """Without drafts and with two acceptances, simulated; what a plan forecasts of the lower."""
    planned = ring.forecast(users)
    assert planned.drafts is not None
    found = {
        f"{acceptance}": figures(run(ring, users, DRAFTS_MAX, acceptance))
        for acceptance in (planned.drafts.acceptance, 0.87)
    }
    return {
        "ring": ring.name,
        "users": users,
        "off": figures(run(ring, users, 0, 0.0)),
        **found,
        "planned_off": planned.tokens_per_s,
        "planned": planned.drafts.tokens_per_s,
    }


def link_row(ring: Ring, users: int) -> dict[str, Any]:
    """Without drafts, and with drafters that are good, poor and always wrong."""
    shares = ("0.88", "0.5", "0.0")
    found = {share: figures(run(ring, users, DRAFTS_MAX, float(share))) for share in shares}
    return {"ring": ring.name, "users": users, "off": figures(run(ring, users, 0, 0.0)), **found}


@experiment
def main(out: Path) -> None:
    """Simulate rings with drafts and without."""
    on_cards = [card_row(ring, users) for ring in cards() for users in (1, 8)]
    head = ("experts", "users", "off", "0.74", "0.87", "plan, off", "plan, 0.74")
    show(markdown_table(head, list(map(_card_line, on_cards))))
    on_links = [link_row(*one) for one in full_links()]
    show(markdown_table(("link", "users", "off", "0.88", "0.5", "0"), list(map(_line, on_links))))
    write_report(out, "simulated_drafts", {"cards": on_cards, "full_links": on_links})


def _rate(found: dict[str, float]) -> str:
    return f"{found['tokens_per_s']:.1f}"


def _card_line(row: dict[str, Any]) -> tuple[str, ...]:
    simulated = (_rate(row[one]) for one in ("off", "0.74", "0.87"))
    planned = (f"{row[one]:.1f}" for one in ("planned_off", "planned"))
    return (row["ring"], str(row["users"]), *simulated, *planned)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    """Rates, each beside the worst window and the gap of rounds, over those without drafts."""
    off = row["off"]
    cells = (
        f"{_rate(one)}, worst {one['worst_tokens_per_s'] / off['worst_tokens_per_s']:.2f}, "
        f"p99 {one['p99_gap_s'] / off['p99_gap_s']:.2f}"
        for one in (row["0.88"], row["0.5"], row["0.0"])
    )
    return (row["ring"], str(row["users"]), _rate(off), *cells)


if __name__ == "__main__":
    main()
