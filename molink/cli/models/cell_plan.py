"""What a plan says of PCs that lend each other memory: how long a request may be with it, what each
has of its own, lends and borrows, and who is too far off to lend."""

from collections.abc import Iterator, Mapping, Sequence

from molink.config.node_file import NodeFile
from molink_scheduler.cell.far_lender import far_lender_sentence
from molink_scheduler.cell.planned_leases import (
    PlannedDebtor,
    PlannedLease,
    longest_with_leases,
)
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.placement import Forecast, Plan
from molink_scheduler.units import gib_text


def cell_lines(plan: Plan, nodes: NodeFile, kept_of_token: Sequence[int]) -> list[str]:
    """Sentences on each ring some of whose PCs are in a cell; `kept_of_token`: bytes of a token's
    KV, layer by layer."""
    lent = {name: size for one in nodes.nodes for name, size in one.lenders.items()}
    if not lent:
        return []
    given = plan, nodes, lent, kept_of_token
    return [line for ring in plan.rings for line in _of_ring(ring, *given)]


def _of_ring(
    ring: Forecast, plan: Plan, nodes: NodeFile, lent: dict[str, int], kept: Sequence[int]
) -> Iterator[str]:
    stages, own = list[PlannedDebtor](), min(stage.kv_tokens for stage in ring.stages)
    for stage in ring.stages:
        layers, near = stage.layers[1] - stage.layers[0], list[str]()
        for lender in lent:
            round_trip_s = nodes.lender_round_trip_s(stage.name, lender)
            if round_trip_s is None:
                continue
            if why := far_lender_sentence(layers, round_trip_s, plan.goal.tpot_s):
                yield f"{lender} lends {stage.name} nothing: {why}"
            else:
                near.append(lender)
        token_bytes = max(1, sum(kept[slice(*stage.layers)]))
        stages.append(PlannedDebtor(stage.name, stage.kv_tokens, token_bytes, near))
    tokens, leases = longest_with_leases(stages, lent, BLOCK_TOKENS)
    if tokens == own:
        yield f"No request has more than {own:,} tokens: nobody lends the stage that has least."
        return
    given = ", ".join(f"{one.debtor} {gib_text(one.size_bytes)} of {one.lender}" for one in leases)
    context = plan.goal.context_tokens
    yield (
        f"No request has more than {own:,} tokens, or {tokens:,} with what is lent in cells "
        f"({given}); together requests of {context:,} tokens are {own // context:,}, or "
        f"{tokens // context:,}."
    )
    yield from _of_pcs(stages, lent, leases)
    trips_s = {
        one.name: (stage.layers[1] - stage.layers[0])
        * (nodes.lender_round_trip_s(one.name, lease.lender) or 0.0)
        for one, stage in zip(stages, ring.stages, strict=True)
        for lease in leases
        if lease.debtor == one.name
    }
    if waits_s := sum(trips_s.values()):
        yield (
            f"A token over what is lent waits {1e3 * waits_s:.3g} ms more for messages (layers x "
            f"round trip), beside {1e3 * ring.tpot_alone_s:.3g} ms alone; and as long as its "
            "lenders attend."
        )


def _of_pcs(
    stages: Sequence[PlannedDebtor], lent: Mapping[str, int], leases: Sequence[PlannedLease]
) -> Iterator[str]:
    """Bytes of KV that each PC has of its own, lends and borrows."""
    own = {one.name: one.tokens * one.token_bytes for one in stages}
    for name in [*own, *(one for one in lent if one not in own)]:
        given = sum(one.size_bytes for one in leases if one.lender == name)
        taken = sum(one.size_bytes for one in leases if one.debtor == name)
        told = [f"KV of its own {gib_text(own[name])}"] if name in own else []
        told += [f"{gib_text(given)} of {gib_text(lent[name])} lent"] if name in lent else []
        told += [f"{gib_text(taken)} borrowed"] if taken else []
        yield f"{name}: {', '.join(told)}."
