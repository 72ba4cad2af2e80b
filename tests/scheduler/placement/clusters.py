"""Small random clusters with every kind of trouble; large ones are those of the benchmark."""

from random import Random

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, LinkFacts, Network, NodeFacts
from molink_scheduler.placement.problem import Problem
from tools.experiments.placement.placement_clusters import home_cluster, round_cluster

__all__ = ["GIB", "home_cluster", "round_cluster", "small_cluster"]

GIB = 2**30


def small_cluster(seed, nodes, layers, mixed=None):
    """Memory, tables, uploads, delays, prompts: any of them may be what binds."""
    r = Random(seed)
    mixed = r.random() < 0.3 if mixed is None else mixed
    sizes = (
        tuple(r.choice([60, 100, 100, 140]) for _ in range(layers)) if mixed else (100,) * layers
    )
    model = ModelCost(
        layer_bytes=sizes,
        kv_bytes=1,
        row_bytes=r.choice([100, 1000, 4000]),
        head_bytes=r.choice([0, 80]),
        tail_bytes=r.choice([0, 80]),
        tied=r.random() < 0.5,
        layer_work=tuple(size / 100 for size in sizes) if mixed else (),
    )
    facts = [
        NodeFacts(
            id=f"n{number}",
            memory_bytes=r.randint(80, 900),
            decode_fixed_s=r.choice([0.001, 0.003, 0.01]),
            decode_row_s=r.choice([1e-5, 1e-4, 1e-3]),
            prefill_row_s=r.choice([1e-5, 1e-4, 3e-4]),
            step_fixed_s=r.choice([0, 0.001]),
            head_row_s=r.choice([0, 0.0005]),
            head_fixed_s=r.choice([0, 0.001]),
            upload_bytes_per_s=r.choice([5e4, 2e5, 1e6, 1e7]),
        )
        for number in range(nodes)
    ]
    links = {
        (a.id, b.id): LinkFacts(r.choice([1e5, 1e6, 1e9]), r.choice([0.001, 0.01, 0.03, 0.06]))
        for a in facts
        for b in facts
        if a is not b
    }
    goal = Goal(
        tpot_s=r.choice([0.08, 0.15, 0.25]),
        context_tokens=10,
        prompt_tokens=r.choice([0, 4, 16]),
        answer_tokens=8,
        kv_tokens_max=120,
    )
    return Problem(model, facts, Network(links), goal)
