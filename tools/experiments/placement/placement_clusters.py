"""Random clusters of homes, for the benchmark and the tests of a placement."""

from collections.abc import Sequence
from random import Random

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, LinkFacts, Network, NodeFacts
from molink_scheduler.placement.problem import Problem

__all__ = ["home_cluster", "home_model", "home_nodes", "round_cluster"]

GIB = 2**30

HOME_GPUS = ((11, 2.1), (22, 0.95), (12, 1.5), (30, 0.5), (7, 2.4))
"""GiB lent, and milliseconds for reading a layer of 436 MB: about an RTX 3060, 3090, 4070, 5090 and
2070."""

UPLOADS_MBPS = (20, 40, 100, 300)


def home_cluster(
    seed: int, nodes: int, layers: int, goal: Goal | None = None, table_bytes: int = 10**9
) -> Problem:
    """Home GPUs with home uplinks in three regions; layers of 436 MB, 4 KB of KV for each token in
    each."""
    r = Random(seed)
    facts = home_nodes(r, nodes)
    model = home_model(layers, table_bytes)
    return Problem(model, facts, _home_links(r, facts), goal or Goal())


def home_model(layers: int, table_bytes: int = 10**9) -> ModelCost:
    """Layers of 436 MB with 4 KB of KV for each token, rows of 8 KB."""
    return ModelCost((436 * 10**6,) * layers, 4096, 8192, table_bytes, table_bytes)


def home_nodes(r: Random, nodes: int) -> list[NodeFacts]:
    """So many home GPUs with home uplinks."""
    facts = []
    for number in range(nodes):
        gib, layer_ms = r.choice(HOME_GPUS)
        layer_s = layer_ms * 1e-3 * r.uniform(0.9, 1.1)
        facts.append(
            NodeFacts(
                id=f"n{number}",
                memory_bytes=gib * GIB,
                decode_fixed_s=layer_s,
                decode_row_s=layer_s * 0.03,
                prefill_row_s=layer_s * 0.012,
                step_fixed_s=1e-3,
                head_row_s=1e-4,
                upload_bytes_per_s=r.choice(UPLOADS_MBPS) * 125e3,
            )
        )
    return facts


def round_cluster(seed: int, nodes: int, layers: int = 80) -> Problem:
    """For the round objective: no tables, wires or prompts, links alike in both directions."""
    r = Random(seed)
    rooms = [4, 6, 8, 12, 16, 24] if nodes >= 30 else [8, 12, 16, 24, 24]
    facts = [
        NodeFacts(
            id=f"n{number}",
            memory_bytes=r.choice(rooms) * 101 + 50,
            decode_fixed_s=r.choice([0.25, 0.4, 0.6, 0.9, 1.5]) * 1e-3 * r.uniform(0.85, 1.15),
            decode_row_s=0,
            prefill_row_s=0,
        )
        for number in range(nodes)
    ]
    model = ModelCost((100,) * layers, 1, 1)
    return Problem(model, facts, _home_links(r, facts), Goal(context_tokens=1))


def _home_links(r: Random, facts: Sequence[NodeFacts]) -> Network:
    """Each home has a delay of its own to its region; regions are 35 ms apart."""
    homes = [(node.id, r.choice("ABC"), r.uniform(1, 8)) for node in facts]
    links = {}
    for a, region, home_ms in homes:
        for b, other, other_ms in homes:
            between_ms = (4 if region == other else 35) * r.uniform(0.8, 1.2)
            if a < b:
                link = LinkFacts(1e9, (home_ms + other_ms + between_ms) / 1e3)
                links[a, b] = links[b, a] = link
    return Network(links)
