"""What a plan says of PCs that lend each other memory: how long a request may be with it, and who
is too far off to lend."""

from collections.abc import Iterator, Sequence

from molink.config.node_file import NodeFile
from molink_scheduler.cell.far_lender import far_lender_sentence
from molink_scheduler.cell.planned_leases import PlannedDebtor, longest_with_leases
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.placement import Forecast, Plan
from molink_scheduler.units import gib_text


def cell_lines(plan: Plan, nodes: NodeFile, kept_of_token: Sequence[int]) -> list[str]:
    """Sentences on each ring some of whose PCs are in a cell; `kept_of_token`: bytes of a token's
    KV, layer by layer."""
    lent = {one.name: one.ram_bytes for one in nodes.nodes if one.ram_bytes}
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
