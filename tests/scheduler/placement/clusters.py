"""Random clusters: small ones with every kind of trouble, and large ones as homes have them."""

from random import Random

from molink_scheduler.placement import Goal, LinkFacts, ModelCost, Network, NodeFacts
from molink_scheduler.placement.problem import Problem

GIB = 2**30

HOME_GPUS = ((11, 2.1), (22, 0.95), (12, 1.5), (30, 0.5), (7, 2.4))
"""GiB lent, and milliseconds for reading a layer of 436 MB: RTX 3060, 3090, 4070, 5090, 2070."""


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


def home_cluster(seed, nodes, layers, goal=None, table_bytes=10**9):
    """Home GPUs with home uplinks in three regions; layers of 436 MB, 4 KB of KV in each."""
    r = Random(seed)
    model = ModelCost((436 * 10**6,) * layers, 4096, 8192, table_bytes, table_bytes)
    facts = []
    for number in range(nodes):
        gib, layer_ms = r.choice(HOME_GPUS)
        layer_s = layer_ms * 1e-3 * r.uniform(0.9, 1.1)
        upload = r.choice([20, 40, 100, 300]) * 125e3
        facts.append(
            NodeFacts(
                id=f"n{number}",
                memory_bytes=gib * GIB,
                decode_fixed_s=layer_s,
                decode_row_s=layer_s * 0.03,
                prefill_row_s=layer_s * 0.012,
                step_fixed_s=1e-3,
                head_row_s=1e-4,
                upload_bytes_per_s=upload,
            )
        )
    return Problem(model, facts, Network(home_links(r, facts)), goal or Goal())


def home_links(r, facts):
    """Each home has its own way to its region; regions are 35 ms apart."""
    homes = [(r.choice("ABC"), r.uniform(1, 8)) for _ in facts]
    links = {}
    for a, (region, way_ms) in zip(facts, homes, strict=True):
        for b, (other, other_ms) in zip(facts, homes, strict=True):
            between_ms = (4 if region == other else 35) * r.uniform(0.8, 1.2)
            if a.id < b.id:
                link = LinkFacts(1e9, (way_ms + other_ms + between_ms) / 1e3)
                links[a.id, b.id] = links[b.id, a.id] = link
    return links


def round_cluster(seed, nodes, layers=80):
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
    return Problem(model, facts, Network(home_links(r, facts)), Goal(context_tokens=1))
