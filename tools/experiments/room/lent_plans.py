"""Should a plan count what cells lend when it chooses layers?

    python -m tools.experiments.room.lent_plans --out DIR

Random homes of three PCs hold 48 layers; beside each is another PC, which lends it memory for KV
over 1 GbE. For each ring the split that ships (by what devices hold) is held against the best of
all splits that counts on the leases, by the arithmetic of plans: users within the bound on a
token's time, waits for lenders among it, and the longest request, with the leases and once they
have been called home.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median

import click

from molink_scheduler.cell.events import CellLink, DeviceFacts
from molink_scheduler.cell.planned_leases import PlannedDebtor, longest_with_leases
from molink_scheduler.cell.quotas import link_s
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.capacity import BLOCKS_HERE_MIN, requests_beside_lender
from molink_scheduler.placement import Forecast, Goal, NodeFacts, Plan, forecast, make_plan
from molink_scheduler.placement.problem import Problem
from molink_scheduler.units import GIB
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.placement.placement_clusters import home_cluster

__all__ = ["main"]

PCS, LAYERS = 3, 48
LINK = CellLink(200e-6, 125e6)
"""1 GbE, as `molink sim cell` has it."""

ATTENDS_BYTES_PER_S = 40e9
"""A CPU with DDR4."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a split serves."""

    users: int
    tokens: int
    """Of the longest request."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One ring: a split with its leases, and when they are gone."""

    counts: tuple[int, ...]
    leased: Figures
    recalled: Figures


def served(ring: Forecast, problem: Problem, lent_bytes: int) -> Figures:
    """What a ring serves where a lender beside each stage has so many bytes for it."""
    goal, each = problem.goal, problem.model.kept_of_token
    debtors = [
        PlannedDebtor(one.name, one.kv_tokens, sum(each[slice(*one.layers)]), [f"{one.name} lends"])
        for one in ring.stages
    ]
    able = [one for one in debtors if one.tokens >= BLOCKS_HERE_MIN * BLOCK_TOKENS]
    lent = {f"{one.name} lends": lent_bytes for one in able} if lent_bytes else {}
    tokens, leases = longest_with_leases(debtors, lent, BLOCK_TOKENS)
    bounds = [
        requests_beside_lender(one.tokens // BLOCK_TOKENS)
        for one in debtors
        if one.name in {lease.debtor for lease in leases}
    ]
    users = min([tokens // goal.context_tokens, *bounds])
    nodes = {one.id: one for one in problem.nodes}
    while users and _tpot_s(ring, nodes, problem, debtors, users) > goal.tpot_s:
        users -= 1
    return Figures(users, tokens)


def _tpot_s(
    ring: Forecast,
    nodes: dict[str, NodeFacts],
    problem: Problem,
    debtors: Sequence[PlannedDebtor],
    users: int,
) -> float:
    """A token's time beside so many users of the planned context, with what lenders take."""
    members, counts = [nodes[one.node_id] for one in ring.stages], _counts(ring)
    loaded = forecast(problem.model, members, counts, problem.network, problem.goal, users)
    held = users * problem.goal.context_tokens
    return loaded.tpot_s + sum(
        link_s(DeviceFacts(0, layers=count, row_bytes=16_500), LINK, users)
        + (held - one.tokens) * one.token_bytes / ATTENDS_BYTES_PER_S
        for one, count in zip(debtors, counts, strict=True)
        if held > one.tokens
    )


def _counts(ring: Forecast) -> tuple[int, ...]:
    return tuple(one.layers[1] - one.layers[0] for one in ring.stages)


def _splits(ring: Forecast, problem: Problem) -> Iterator[Forecast]:
    """All splits of a ring's layers over its PCs whose weights fit."""
    nodes = {one.id: one for one in problem.nodes}
    members = [nodes[one.node_id] for one in ring.stages]
    for cuts in combinations(range(1, problem.layers), len(members) - 1):
        counts = [end - start for start, end in pairwise((0, *cuts, problem.layers))]
        found = forecast(problem.model, members, counts, problem.network, problem.goal)
        if all(one.kv_tokens for one in found.stages):
            yield found


def _compared(ring: Forecast, problem: Problem, lent_bytes: int) -> Compared:
    leased, recalled = (served(ring, problem, lent) for lent in (lent_bytes, 0))
    return Compared(_counts(ring), leased, recalled)


def _best(ring: Forecast, problem: Problem, lent_bytes: int) -> Compared:
    """The split with the most users on the leases, then the longest request."""

    def worth(split: Forecast) -> tuple[int, int]:
        found = served(split, problem, lent_bytes)
        return found.users, found.tokens

    return _compared(max(_splits(ring, problem), key=worth), problem, lent_bytes)


@experiment
@click.option("--clusters", default=20, show_default=True)
@click.option("--lent-gib", default=8, show_default=True, help="Of each lender.")
@click.option("--context-tokens", default=8192, show_default=True, help="Of each user.")
def main(out: Path, clusters: int, lent_gib: int, context_tokens: int) -> None:
    """Print medians over rings of what both splits serve, with leases and without."""
    pairs = list[tuple[Compared, Compared]]()
    for seed in range(clusters):
        problem = home_cluster(seed, PCS, LAYERS, Goal(context_tokens=context_tokens))
        plan = make_plan(problem.model, problem.nodes, problem.network, problem.goal, rings_max=1)
        if not isinstance(plan, Plan) or len(plan.rings[0].stages) < PCS:
            continue  # The model does not fit, or two PCs are enough.
        given = problem, lent_gib * GIB
        pairs.append((_compared(plan.rings[0], *given), _best(plan.rings[0], *given)))
        told = [[asdict(one) for one in pair] for pair in pairs]
        write_report(out, "lent_plans", {"rings": told})
    show(f"{len(pairs)} rings")
    show(markdown_table(("split by", "", "users", "longest request"), [*_rows(pairs)]))


def _rows(pairs: Sequence[tuple[Compared, Compared]]) -> Iterator[list[str]]:
    for name, place in (("what devices hold, as it ships", 0), ("leases as well", 1)):
        for state in ("leased", "recalled"):
            found: list[Figures] = [getattr(pair[place], state) for pair in pairs]
            users, tokens = median(one.users for one in found), median(one.tokens for one in found)
            idle = sum(not one.users for one in found)
            yield [name, state, f"{users:g} ({idle} rings: none)", f"{tokens:,.0f}"]


if __name__ == "__main__":
    main()
