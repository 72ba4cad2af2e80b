"""Room for KV of a ring that serves: what its stages offer, what its head is told, who waits.

Each stage says what it offers, as it joins and with its health; the head counts with the least
(`molink_scheduler.kv.capacity`). A request that may need more than that now, though not more than
all places of the ring hold, waits on the head, and its user and the operator are told why. Where no
lender brings them back, the ring lets in what it has room for, and refuses who waits for more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.lent_room import counted
from molink.coordinator.ring.live_sequence import LiveSequence
from molink.coordinator.ring.ring import Ring
from molink.serving.model_card import ModelCard
from molink.wire.frames import SetCapacity
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.capacity import RingCapacity, least_offered
from molink_scheduler.resume import requests_to_resume
from molink_scheduler.units import gb_text

BACK_WITHIN_S = 300.0
"""Seconds for which requests wait for room that has gone: a lender that was lost lends again after
two minutes (`ledger.STEADY_S`), a lease that nobody comes for ends after one, and PCs are busy."""


def terms_now(terms: RingTerms, stages: Sequence[AgentStage]) -> RingTerms:
    """The terms of a ring with the capacity that its stages offer now, as far as they let it count
    with that."""
    most, offers = terms.tokens_most, [counted(stage, terms) for stage in stages]
    now = min(most, BLOCK_TOKENS * min(offer.blocks for offer in offers))
    return replace(terms, kv_tokens_capacity=now, kv_tokens_most=0 if now >= most else most)


def resumable(live: Mapping[int, LiveSequence], terms: RingTerms) -> tuple[tuple[int, int], ...]:
    """Ids of the sequences that can go on in a ring's next epoch, and of how many of their first
    tokens its stages hold KV; none where layers keep states that cannot go back."""
    if terms.state_slots and not terms.can_go_back:
        return ()
    held = {request_id: one.resumable_tokens for request_id, one in live.items()}
    return requests_to_resume(held, terms.kv_tokens_capacity, terms.slots)


@dataclass(slots=True)
class RoomWatch:
    """Watch over what the stages of one ring offer."""

    _sent: tuple[int, RingCapacity] | None = field(init=False, default=None)
    """Epoch of the ring in which the head was told something last, and what; in another one it
    counts by the ring's terms."""

    _less_since: float | None = field(init=False, default=None)
    """Since when it has less room than it had; None: it has all of it."""
    _let_in: int | None = field(init=False, default=None)
    """Tokens of the longest request that is let in; None: what all places hold."""

    def card(self, whole: ModelCard) -> ModelCard:
        """The card by which requests are let in now; `whole`: with all places."""
        return whole if self._let_in is None else whole.fitting(self._let_in, borrows=True)

    def look(
        self,
        ring: Ring,
        live: Mapping[int, LiveSequence],
        send: Callable[[SetCapacity], None],
        now: float,
        *,
        may_grow: bool,
    ) -> list[LiveSequence]:
        """Have the head count with what the stages offer now, and those told who wait for more;
        whom to refuse. `may_grow`: whether somebody may lend what is lacking."""
        self.send_capacity(ring, send)
        terms = terms_now(ring.terms.ring, ring.stages)
        self._bound(terms, now, may_grow=may_grow)
        waiting = self._note_waiting(ring, live, terms)
        let_in = terms.tokens_most if self._let_in is None else self._let_in
        return [one for one in waiting if one.tokens > let_in]

    def send_capacity(self, ring: Ring, send: Callable[[SetCapacity], None]) -> None:
        """Have the head count with what the stages offer now."""
        terms = ring.terms.ring
        capacity = least_offered(counted(stage, terms) for stage in ring.stages)
        if capacity.blocks >= blocks_for(terms.tokens_most):
            self._less_since = self._let_in = None
        if any(capacity.heard) and self._sent != (ring.epoch, capacity):
            send(SetCapacity(capacity))
            self._sent = ring.epoch, capacity

    def _bound(self, terms: RingTerms, now: float, *, may_grow: bool) -> None:
        there = terms.kv_tokens_capacity
        if there >= terms.tokens_most:
            return
        self._less_since = now if self._less_since is None else self._less_since
        is_awaited = may_grow and now - self._less_since < BACK_WITHIN_S
        self._let_in = None if is_awaited else there

    def _note_waiting(
        self, ring: Ring, live: Mapping[int, LiveSequence], terms: RingTerms
    ) -> list[LiveSequence]:
        head = ring.stages[0].health
        without = frozenset(head.without_room) if head is not None else frozenset()
        for request_id, one in live.items():
            if one.timeline is not None:
                one.timeline.waits_for = _reason(one, ring, terms) if request_id in without else ""
        return [live[request_id] for request_id in without & live.keys()]


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
