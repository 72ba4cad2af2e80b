"""Check that nodes can hold the model at all, and how much is missing if not.

Each node takes as many layers, with one user's KV and states, as its memory allows; the first stage
also holds the embeddings and the last one the output matrix, so of all pairs of nodes those become
the ends that lose the fewest layers by it. For equal layers that is exact. Layers that differ count
as the largest of them, so a cluster that is said to lack something may lack a little less. Where
layers stay together, room for all of them may be there and still none for those.
"""

from dataclasses import dataclass

from molink_scheduler.placement.problem import Order, Problem
from molink_scheduler.units import gib_text


@dataclass(frozen=True, slots=True)
class Shortage:
    """Layers and bytes that nodes lack to hold a model."""

    layers: int
    """Layers that find no room; 0: only their order, or that some stay together, stands in the way.
    """
    bytes: int
    lent_bytes: int
    sentence: str


def shortage(problem: Problem) -> Shortage | None:
    """Shortage of the nodes; None when they can hold the model and one user."""
    order = fullest_order(problem)
    held = _held(problem, order) if order is not None else 0
    if held >= problem.layers:
        return _together_shortage(problem) if problem.model.together else None
    lent = sum(node.memory_bytes for node in problem.nodes)
    layers = problem.layers - held
    missing = layers * (max(problem.model.layer_bytes) + max(problem.user_bytes, default=0))
    if order is None:
        missing += max(problem.model.head_bytes, problem.model.tail_bytes)
    count = len(problem.nodes)
    who = "no PC is" if count == 0 else "this PC is" if count == 1 else f"these {count} PCs are"
    sentence = (
        f"{who} not enough: of {problem.layers} layers {held} find room in the "
        f"{gib_text(lent)} lent, and {gib_text(missing)} more are needed for the other "
        f"{layers} with the KV of one user; let another PC join, lend more, or plan with fewer "
        "--context-tokens."
    ).replace("no PC is not enough", "no PC lends anything")
    return Shortage(layers, missing, lent, sentence)


def _together_shortage(problem: Problem) -> Shortage:
    """Shortage of the PC with the most room for the longest run of layers that stay together."""
    start, end = max(problem.model.together, key=lambda run: run[1] - run[0])
    nodes = range(len(problem.nodes))
    needs = {
        node: problem.bytes_before[end]
        - problem.bytes_before[start]
        + (end - start) * problem.user_bytes[node]
        + problem.ends_bytes(node, start == 0, end == problem.layers)
        for node in nodes
    }
    best = min(nodes, key=lambda node: needs[node] - problem.nodes[node].memory_bytes)
    lent = problem.nodes[best].memory_bytes
    missing = max(0, needs[best] - lent)
    sentence = (
        f"layers {start} to {end - 1} of {problem.layers} stay on one PC and take "
        f"{gib_text(needs[best])} with the KV of one user; {problem.nodes[best].name} lends "
        f"{gib_text(lent)}, "
    )
    sentence += (
        f"{gib_text(missing)} more are needed: let one PC lend more, or take fewer bits."
        if missing
        else "and the others lack room for what is left: let more PCs join, or one lend more."
    )
    return Shortage(0, missing, sum(node.memory_bytes for node in problem.nodes), sentence)


def fullest_order(problem: Problem) -> Order | None:
    """The ring that holds the most layers, its nodes from the largest down between the ends; None
    when no node can take a layer."""
    alone = [_room(problem, node, False, False) for node in range(len(problem.nodes))]
    free = sorted((node for node, room in enumerate(alone) if room), key=lambda n: -alone[n])
    free = free[: problem.stages_max]
    pairs = [(a, b) for a in _best_ends(problem, free, 0) for b in _best_ends(problem, free, 1)]
    orders = [(a, *(n for n in free if n not in (a, b)), b) for a, b in pairs if a != b]
    orders += [(node,) for node in free if _room(problem, node, True, True)]
    return max(orders, key=lambda order: _held(problem, order), default=None)


def _best_ends(problem: Problem, free: list[int], end: int) -> list[int]:
    """Two nodes that lose the fewest layers as head (0) or tail (1), and still have one."""

    def loss(node: int) -> int:
        with_table = _room(problem, node, end == 0, end == 1)
        return _room(problem, node, False, False) - with_table if with_table else problem.layers

    return sorted(free, key=loss)[:2]


def _held(problem: Problem, order: Order) -> int:
    """Layers for which this ring has room; 0 when a node has none."""
    last = len(order) - 1
    rooms = [_room(problem, node, place == 0, place == last) for place, node in enumerate(order)]
    return min(problem.layers, sum(rooms)) if min(rooms) else 0


def _room(problem: Problem, node: int, is_head: bool, is_tail: bool) -> int:
    free = problem.nodes[node].memory_bytes - problem.ends_bytes(node, is_head, is_tail)
    each = max(problem.model.layer_bytes) + problem.user_bytes[node]
    return max(0, min(problem.layers, free // each))
