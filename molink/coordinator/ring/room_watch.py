"""Room for KV of a ring that serves: what its stages offer, what its head is told, who waits.

Each stage says what it offers, as it joins and with its health; the head counts with the least
(`molink_scheduler.kv.capacity`). A request that may need more than that now, though not more than
all places of the ring hold, waits on the head, and its user and the operator are told why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.lent_room import counted
from molink.coordinator.ring.live_sequence import LiveSequence
from molink.coordinator.ring.ring import Ring
from molink.wire.frames import SetCapacity
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.capacity import RingCapacity, least_offered
from molink_scheduler.units import gb_text


def terms_now(terms: RingTerms, stages: Sequence[AgentStage]) -> RingTerms:
    """The terms of a ring with the capacity that its stages offer now, as far as they let it count
    with that."""
    most, offers = terms.tokens_most, [counted(stage, terms) for stage in stages]
    now = min(most, BLOCK_TOKENS * min(offer.blocks for offer in offers))
    return replace(terms, kv_tokens_capacity=now, kv_tokens_most=0 if now >= most else most)


@dataclass(slots=True)
class RoomWatch:
    """Watch over what the stages of one ring offer."""

    _told: tuple[int, RingCapacity] | None = field(init=False, default=None)
    """Epoch of the ring in which the head was told something last, and what; in another one it
    counts by the ring's terms."""

    def look(
        self, ring: Ring, live: Mapping[int, LiveSequence], send: Callable[[SetCapacity], None]
    ) -> None:
        """Have the head count with what the stages offer now, and those told who wait for more."""
        self._note_waiting(ring, live)
        capacity = least_offered(counted(stage, ring.terms.ring) for stage in ring.stages)
        if any(capacity.heard) and self._told != (ring.epoch, capacity):
            send(SetCapacity(capacity))
            self._told = ring.epoch, capacity

    def _note_waiting(self, ring: Ring, live: Mapping[int, LiveSequence]) -> None:
        head, terms = ring.stages[0].health, terms_now(ring.terms.ring, ring.stages)
        without = frozenset(head.without_room) if head is not None else frozenset()
        for request_id, one in live.items():
            if one.timeline is not None:
                one.timeline.waits_for = _reason(one, ring, terms) if request_id in without else ""


def _reason(live: LiveSequence, ring: Ring, terms: RingTerms) -> str:
    now = terms.kv_tokens_capacity
    return (
        f"It may grow to {live.request.tokens_max:,} tokens, and its ring has room for "
        f"{now:,} of {terms.tokens_most:,} now: it waits {_awaited(live, ring, now)}."
    )


def _awaited(live: LiveSequence, ring: Ring, tokens_now: int) -> str:
    """What brings more room: a lender, where the stage with the least can have one."""
    least = min(ring.stages, key=lambda stage: stage.offer.blocks)
    if ring.terms.ring.requests_max is None or least.loaded is None:
        return "until more is back"
    lacks = live.request.tokens_max - tokens_now
    size = gb_text(lacks * least.loaded.kv_token_bytes, 3)
    return f"for a lender with room for {lacks:,} tokens more of {least.name}, {size}"
