"""Room for KV of a ring whose stages borrow while it serves: what each has by itself, what a lender
has brought, and the terms on which its ring counts with that.

A stage with a lender writes into its own memory alone, which holds a few blocks of each request. So
a ring counts with what a lease brings only on terms that bound the requests at a time, and by
which the longer ones may come: it begins another epoch, in which nobody is lost.
"""

from collections.abc import Sequence
from dataclasses import replace

from molink.coordinator.ring.agent_stage import AgentStage
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.capacity import Offer, requests_beside_lender
from molink_scheduler.routing.ring_forecast import LentStage


def own_tokens(stage: AgentStage) -> int:
    """Tokens of KV that a stage which has loaded holds without a lender in its LAN."""
    assert stage.loaded is not None, "a stage has what it has loaded"
    given, planned = stage.loaded.kv_tokens_capacity, stage.work.kv_tokens
    if stage.work.lan_lease is None or stage.loaded.requests_max is None or planned is None:
        return given
    return min(given, BLOCK_TOKENS * blocks_for(planned))


def lent_stages(stages: Sequence[AgentStage]) -> tuple[LentStage, ...]:
    """Stages that count with places of lenders, and how long their steps wait for these: as they
    tell, and before they have computed such a step a round trip a layer for decode, and nothing for
    prompts, whose waits are a matter of bytes."""
    told = [(one, one.health.lender) for one in stages if one.health is not None]
    return tuple(
        LentStage(
            lender.kv_tokens_own,
            lender.step_wait_s or (one.layers[1] - one.layers[0]) * one.lender_trip_s,
            lender.row_key_wait_s,
        )
        for one, lender in told
        if lender is not None and BLOCK_TOKENS * one.offer.blocks > lender.kv_tokens_own
    )


def own_least(stages: Sequence[AgentStage], tokens: int) -> int:
    """Tokens that each stage of a ring has by itself, at most `tokens`: who takes a lost one's
    place needs no more, since what it lacks it borrows as those before did."""
    return min([tokens, *(own_tokens(one) for one in stages if one.loaded is not None)])


def counted(stage: AgentStage, terms: RingTerms) -> Offer:
    """The last offer of a stage, as far as its ring may count with it on its present terms."""
    offer, loaded = stage.offer, stage.loaded
    assert loaded is not None, "a stage offers what it has loaded"
    least = _requests(loaded)
    bound = terms.requests_max
    blocks = offer.blocks
    if _has_grown(offer, loaded) and (bound is None or bound > least):
        blocks = blocks_for(loaded.kv_tokens_capacity)
    return Offer(offer.number, min(blocks, blocks_for(terms.tokens_most)))


def grown_terms(terms: RingTerms, stages: Sequence[AgentStage]) -> RingTerms | None:
    """The terms on which a ring counts with all that its stages offer; None: it does already."""
    offered = min(stage.offer.blocks for stage in stages)
    if offered <= min(counted(stage, terms).blocks for stage in stages):
        return None
    grown = [one.loaded for one in stages if one.loaded and _has_grown(one.offer, one.loaded)]
    bounds = [*map(_requests, grown), terms.requests_max]
    tokens, most = BLOCK_TOKENS * offered, terms.tokens_most
    return replace(
        terms,
        kv_tokens_capacity=tokens,
        kv_tokens_most=0 if tokens >= most else most,
        requests_max=min((one for one in bounds if one is not None), default=None),
    )


def _has_grown(offer: Offer, loaded: StageLoaded) -> bool:
    """Whether a lender has come since the stage has loaded."""
    return offer.number > 0 and offer.blocks > blocks_for(loaded.kv_tokens_capacity)


def _requests(loaded: StageLoaded) -> int:
    """Requests that a stage has room of its own for at a time, beside a lender."""
    if loaded.requests_max is not None:
        return loaded.requests_max
    return requests_beside_lender(blocks_for(loaded.kv_tokens_capacity))
