"""A placement: rings with their forecasts, and for every node left over why it is.

`make_plan` is what a coordinator, and `molink plan`, asks. After the search, whatever is left over
is offered to every ring once more, so a standby is one that no ring gains from, and the reason
given is what the ring that it would suit best would become.

`even_plan` is the plain alternative: all nodes in one ring, as they came, with equal shares. It is
there to be compared with, and for operators who want to decide the order themselves by the order in
which PCs join.

Both look at rings one by one and give each node an upload of its own. Devices of one PC stand next
to each other in nearly every good ring, because what passes between them does not leave the PC:
then one of them uses the line, and all of it is right. Where a plan lets several of them send out
of the PC, in one ring or in two, `plan_on_shared_lines` makes it again with so many shares. Equal
shares from the beginning were rejected: a second card would then halve the first one's upload and
make most homes worse, not better.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement.cluster import best_of
from molink_scheduler.placement.evaluate import Forecast, crowded_tpot_s, forecast
from molink_scheduler.placement.facts import Goal, Network, NodeFacts
from molink_scheduler.placement.grow import recipes_for_users
from molink_scheduler.placement.neighbourhood import PairCosts, insertions
from molink_scheduler.placement.objective import WORST, Objective, PlacedRing
from molink_scheduler.placement.problem import Order, Problem
from molink_scheduler.placement.search import EFFORT_MAX, search
from molink_scheduler.placement.shortage import Shortage, shortage
from molink_scheduler.placement.split import even
from molink_scheduler.units import gib_text

__all__ = [
    "Plan",
    "Standby",
    "even_plan",
    "loaded_rings",
    "make_plan",
    "plan_on_shared_lines",
    "tokens_per_s_together",
]

REASON_RINGS_MAX = 8
"""Rings for which a standby's reason is worked out, those that are nearest to the node: for a
hundred standbys beside fifty rings that takes a tenth of a second, and the others are no better."""

TOKEN_MS_MIN = 0.05
"""A shorter delay on every token is not mentioned in a standby's reason."""

PASSES_MAX = 3
"""Most passes: with the whole line, with as many shares as the first plan needs, and, should that
plan need more, with one for every device: that one always holds."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A node without layers, and why no ring takes it."""

    node_id: str
    name: str
    reason: str
    """Clause for its owner, without a full stop; the node is its subject."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Rings, each with its forecast, and the nodes that are left over."""

    goal: Goal
    rings: tuple[Forecast, ...]
    """The one with the most users first."""
    standbys: tuple[Standby, ...] = ()

    @property
    def users(self) -> int:
        """Users within the bound, all rings together."""
        return sum(ring.users for ring in self.rings)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all rings at that load."""
        return sum(ring.tokens_per_s for ring in self.rings)

    @property
    def ttft_s(self) -> float:
        """Time to first token that users meet in the mean, on an idle ring."""
        weights = [max(1, ring.users) for ring in self.rings]
        total = sum(w * ring.ttft_s for w, ring in zip(weights, self.rings, strict=True))
        return total / max(1, sum(weights))

    @property
    def layers_of(self) -> dict[str, tuple[int, int]]:
        """Layers [start, end) of each node that has some, by its id."""
        return {stage.node_id: stage.layers for ring in self.rings for stage in ring.stages}


def make_plan(
    model: ModelCost,
    nodes: Sequence[NodeFacts],
    network: Network,
    goal: Goal,
    rings_max: int | None = None,
    effort_max: int = EFFORT_MAX,
) -> Plan | Shortage:
    """The best placement found, in at most `rings_max` rings (None: as many as pay), or what is
    missing. Raises ValueError when two nodes have the same id.

    A plan with a single ring may serve no user within the bound: then that ring is the one with the
    shortest round trip.
    """
    problem = Problem(model, nodes, network, goal)
    objective = Objective(problem)
    found = search(objective, recipes_for_users(problem), rings_max, effort_max)
    if not found:
        missing = shortage(problem)
        assert missing is not None, "the search begins with the ring that holds the most"
        return missing
    rings, pool = _adopt(objective, found)
    rings.sort(key=lambda ring: (-ring.score.users, ring.order))
    forecasts = tuple(_forecast(problem, ring) for ring in rings)
    standbys = [
        Standby(node.id, node.name, _standby_reason(objective, rings, forecasts, number))
        for number, node in enumerate(problem.nodes)
        if number in pool
    ]
    return Plan(goal, forecasts, tuple(standbys))


def _forecast(problem: Problem, ring: PlacedRing) -> Forecast:
    nodes = [problem.nodes[number] for number in ring.order]
    return forecast(problem.model, nodes, ring.counts, problem.network, problem.goal)


def _adopt(objective: Objective, found: Sequence[PlacedRing]) -> tuple[list[PlacedRing], set[int]]:
    """Rings that gain from no node left over, and these nodes; the search may have run out of
    effort before it had tried them all."""
    rings = list(found)
    used = {node for ring in rings for node in ring.order}
    pool = set(range(len(objective.problem.nodes))) - used
    while any(_is_adopted(objective, rings, node, pool) for node in sorted(pool)):
        pass
    return rings, pool


def _is_adopted(objective: Objective, rings: list[PlacedRing], node: int, pool: set[int]) -> bool:
    """Whether a ring has taken the node."""
    for number, ring in enumerate(rings):
        larger = best_of(objective, _orders_with(objective.problem, ring, node), ring.score)
        if larger is not None:
            rings[number] = larger
            pool.remove(node)
            return True
    return False


def _orders_with(problem: Problem, ring: PlacedRing, node: int) -> list[Order]:
    return insertions(PairCosts(problem, ring.rows), ring.order, node)


def _standby_reason(
    objective: Objective, rings: Sequence[PlacedRing], forecasts: Sequence[Forecast], node: int
) -> str:
    """Why no ring takes this node, in one sentence without a full stop."""
    problem = objective.problem
    facts, model = problem.nodes[node], problem.model
    layer = min(model.layer_bytes) + problem.user_bytes[node]
    if facts.memory_bytes < layer:
        return (
            f"lends too little memory for one layer and the KV of one user "
            f"({gib_text(facts.memory_bytes, 2)}, {gib_text(layer, 2)} are needed)"
        )
    near = sorted(
        range(len(rings)),
        key=lambda number: min(problem.delay_s[node][other] for other in rings[number].order),
    )
    tried = [
        (larger, forecasts[number])
        for number in near[:REASON_RINGS_MAX]
        if (larger := best_of(objective, _orders_with(problem, rings[number], node), WORST))
    ]
    if not tried:
        return _no_room_reason(problem, rings)
    changes = (_change_in_words(problem, larger, now) for larger, now in tried)
    return min(changes, key=lambda change: change[0])[1]


def _no_room_reason(problem: Problem, rings: Sequence[PlacedRing]) -> str:
    if all(len(ring.order) >= problem.stages_max for ring in rings):
        return "finds no place: every ring has a node for each part of the model"
    return "lends too little memory to hold its part of any ring"


def _change_in_words(
    problem: Problem, larger: PlacedRing, now: Forecast
) -> tuple[tuple[int, float], str]:
    """How bad the ring with the node would be, and a sentence that says so."""
    then = _forecast(problem, larger)
    lost = now.users - then.users
    longer_ms = 1e3 * (then.tpot_alone_s - now.tpot_alone_s)
    parts = []
    if longer_ms >= TOKEN_MS_MIN:
        parts.append(f"lengthen every token by {_milliseconds(longer_ms)}")
    if lost > 0:
        parts.append(f"cost {lost} of {now.users} users")
    elif now.users == 0 and longer_ms < TOKEN_MS_MIN:
        parts.append("shorten no token enough to be worth the risk of one more PC")
    else:
        parts.append("add no users" if now.users else "bring none within the bound")
    return (lost, longer_ms), "would " + " and ".join(parts)


def _milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def even_plan(
    model: ModelCost, nodes: Sequence[NodeFacts], network: Network, goal: Goal
) -> Plan | Shortage:
    """Plan with one ring of all nodes in their order, layers as equal as they can be cut; or what
    is missing for that.

    Layers that do not divide go to the first nodes, one each.
    """
    lent = sum(node.memory_bytes for node in nodes)
    if not nodes:
        missing = shortage(Problem(model, nodes, network, goal))
        assert missing is not None, "no nodes hold nothing"
        return missing
    counts = even(model.layers, len(nodes), model.may_end)
    if counts is None:
        return Shortage(
            0,
            0,
            lent,
            f"an even split of {model.layers} layers leaves some of {len(nodes)} PCs without one: "
            "let the plan split the model, or let fewer join.",
        )
    ring = forecast(model, nodes, counts, network, goal)
    problem = Problem(model, nodes, network, goal)
    return _even_shortage(ring, problem, lent) or Plan(goal, (ring,))


def _even_shortage(ring: Forecast, problem: Problem, lent: int) -> Shortage | None:
    """Shortage of the node that is furthest from holding its share with the KV of one user."""
    needs = {
        stage: stage.weights_bytes + before[stage.layers[1]] - before[stage.layers[0]]
        for stage, before in zip(ring.stages, problem.user_bytes_before, strict=True)
    }
    worst = max(ring.stages, key=lambda stage: needs[stage] - stage.memory_bytes)
    missing = needs[worst] - worst.memory_bytes
    if missing <= 0:
        return None
    start, end = worst.layers
    return Shortage(
        end - start,
        missing,
        lent,
        f"an even split gives {worst.name} {end - start} of {problem.layers} layers, "
        f"{gib_text(needs[worst], 2)} with the KV of one user, and it lends "
        f"{gib_text(worst.memory_bytes, 2)}: let the plan split the model, or lend more.",
    )


Found = TypeVar("Found", bound=Plan | Shortage)


def plan_on_shared_lines(
    nodes: Sequence[NodeFacts], make: Callable[[Sequence[NodeFacts]], Found]
) -> Found:
    """The plan that `make` finds for these nodes; `upload_bytes_per_s` of each is its PC's."""
    pc_of = {node.id: node.pc for node in nodes}
    shares: Counter[str] = Counter()
    found = make(nodes)
    for _ in range(PASSES_MAX - 1):
        if isinstance(found, Shortage):
            break
        crowded = _crowded(senders_of(found, pc_of), shares, Counter(pc_of.values()))
        if not crowded:
            break
        shares |= crowded
        found = make([_with_share(node, shares[node.pc]) for node in nodes])
    return found


def senders_of(plan: Plan, pc_of: Mapping[str, str]) -> Counter[str]:
    """Count the devices of each PC that send out of it."""
    senders: Counter[str] = Counter()
    for ring in plan.rings:
        pcs = [pc_of.get(stage.node_id, stage.node_id) for stage in ring.stages]
        following = [*pcs[1:], *pcs[:1]]
        senders.update(pc for pc, to in zip(pcs, following, strict=True) if pc != to)
    return senders


def _crowded(senders: Counter[str], shares: Counter[str], devices: Counter[str]) -> Counter[str]:
    """The shares into which lines have to be cut on which more send than was planned for."""
    more = {pc: count for pc, count in senders.items() if count > max(1, shares[pc])}
    return Counter({pc: devices[pc] if shares[pc] else count for pc, count in more.items()})


def _with_share(node: NodeFacts, shares: int) -> NodeFacts:
    return replace(node, upload_bytes_per_s=node.upload_bytes_per_s / max(1, shares))


def loaded_rings(
    plan: Plan, model: ModelCost, nodes: Sequence[NodeFacts], network: Network, users: int
) -> list[Forecast] | None:
    """The plan's rings under the load of `users` users, those without a user left out; None where
    the KV of so many finds no room. Users who come one by one choose the fastest ring."""
    by_id = {node.id: node for node in nodes}

    @cache
    def under(ring: int, load: int) -> Forecast:
        stages = plan.rings[ring].stages
        counts = [stage.layers[1] - stage.layers[0] for stage in stages]
        members = [by_id[stage.node_id] for stage in stages]
        return forecast(model, members, counts, network, plan.goal, load)

    loads = [0] * len(plan.rings)
    for _ in range(users):
        rooms = [ring for ring in range(len(loads)) if loads[ring] < plan.rings[ring].users_memory]
        if not rooms:
            return None
        loads[min(rooms, key=lambda ring: under(ring, loads[ring] + 1).tpot_s)] += 1
    return [under(ring, load) for ring, load in enumerate(loads) if load]


def tokens_per_s_together(
    plan: Plan, model: ModelCost, nodes: Sequence[NodeFacts], network: Network, users: int
) -> float | None:
    """Tokens per second of all these users, between the first and the last of each answer, with
    what prompts of others cost them; None where they find no room."""
    rings = loaded_rings(plan, model, nodes, network, users)
    if rings is None:
        return None
    by_id = {node.id: node for node in nodes}
    total = 0.0
    for ring in rings:
        counts = [stage.layers[1] - stage.layers[0] for stage in ring.stages]
        members = [by_id[stage.node_id] for stage in ring.stages]
        asked = members, counts, network, plan.goal
        total += ring.users / crowded_tpot_s(model, *asked, ring.users)
    return total
