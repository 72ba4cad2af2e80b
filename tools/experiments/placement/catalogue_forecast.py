"""Rates that `molink models --for` tells, beside the simulator's of the same rings.

    python -m tools.experiments.placement.catalogue_forecast --out DIR

One user and eight. They ask again as soon as they were answered, so that as many are there at any
moment as the forecast counts with: prompts of 768 tokens, answers of 256. Virtual time, so the same
figures come on every machine.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from molink.catalogue.asked import HomeLine, asked_pcs, card_facts
from molink.catalogue.fits import question_of
from molink.checkpoint.catalogue.entries import Format, catalogue_entry
from molink_scheduler.placement import Forecast, Goal, Plan, loaded_rings
from molink_scheduler.placement.evaluate import crowded_tpot_s
from molink_sim.forecast import _ring
from molink_sim.report.summary import samples
from molink_sim.scenario import RequestArrival, RingSpec, Scenario, SystemSpec
from molink_sim.simulate import simulate
from tools.experiments.harness.experiment import experiment

CASES: tuple[tuple[str, str, Format], ...] = (
    ("2x 3090", "qwen3-32b", "4 bits"),
    ("2x 3090", "deepseek-r1-distill-llama-70b", "4 bits"),
    ("3x 3060", "qwen3-14b", "8 bits"),
    ("3x 3060", "gemma-3-27b", "4 bits"),
    ("4090, 3080, 4060 laptop", "qwen3-32b", "4 bits"),
    ("4060 laptop", "smollm3-3b", "16 bits"),
)
USERS = (1, 8)
ROUNDS = 8
"""Answers of each user; the first is not counted, as fewer are there."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Tokens per second of each user on one ring, by forecast and by simulation."""

    cards: str
    model: str
    form: str
    users: int
    forecast: float
    simulated: float


def compare(cards: str, name: str, form: Format) -> Iterator[Compared]:
    """The fastest ring of a plan, alone and with as many of eight users as choose it."""
    entry, pcs = catalogue_entry(name), asked_pcs(cards, HomeLine())
    assert entry is not None
    question = question_of(entry, form, card_facts(pcs))
    plan = question.answer()
    assert isinstance(plan, Plan), plan
    listed, network = {node.name: node for node in pcs.nodes}, pcs.network()
    for users in USERS:
        rings = loaded_rings(plan, question.model, question.nodes, question.network, users)
        if rings is None:
            continue
        ring = rings[0]
        spec = _ring(entry.shape(form), listed, network, ring)
        tpot_s = ring.tpot_alone_s if users == 1 else ring.tpot_s
        if users > 1:
            counts = [stage.layers[1] - stage.layers[0] for stage in ring.stages]
            by_id = {node.id: node for node in question.nodes}
            members = [by_id[stage.node_id] for stage in ring.stages]
            asked = members, counts, question.network, plan.goal
            tpot_s = crowded_tpot_s(question.model, *asked, ring.users)
        yield Compared(cards, name, form, users, 1 / tpot_s, 1 / _tpot_s(spec, ring, tpot_s))


def _tpot_s(spec: RingSpec, ring: Forecast, tpot_s: float) -> float:
    """Mean time per token of users who ask again when they were answered."""
    lasts_s = ring.ttft_s + Goal().answer_tokens * tpot_s
    scenario = Scenario(
        rings=(spec,),
        arrivals=list(_arrivals(ring.users, lasts_s)),
        system=SystemSpec(link_model="ideal"),
        duration_s=1e4,
        warmup_s=0.99 * lasts_s,
        drain_s=1e4,
        seed=0,
        requests_at_once_max=ring.users,
    )
    return mean(samples(simulate(scenario)).tpot_s)


def _arrivals(users: int, lasts_s: float) -> Iterator[RequestArrival]:
    """The first ones spread over an answer; the others wait until one was answered."""
    for number in range(ROUNDS * users):
        at_s = min(number / users, 1.0) * lasts_s
        yield RequestArrival(at_s, Goal().prompt_tokens, Goal().answer_tokens)


@experiment
def main(out: Path) -> None:
    """Print a table and write the figures."""
    rows = [one for case in CASES for one in compare(*case)]
    fields = [{name: getattr(one, name) for name in Compared.__dataclass_fields__} for one in rows]
    (out / "catalogue_forecast.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    for one in rows:
        off = one.forecast / one.simulated - 1
        where = f"{one.cards} | {one.model}, {one.form} | {one.users}"
        print(f"| {where} | {one.forecast:.1f} | {one.simulated:.1f} | {off:+.0%} |")


if __name__ == "__main__":
    main()
