"""Forecaster of one ring: what a newcomer would get there, kept up to date by its requests.

The ring's line, its pace, the lengths of its answers and a copy of its directory of cached prefixes
follow requests from when they are sent to when they end. The decisions are in
`molink_scheduler.routing`.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from molink.coordinator.ring.live_sequence import LiveSequence
from molink.serving.service import GenerationRequest
from molink.stage_protocol.progress import StageProgress
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.prompt_order import PromptOrder
from molink_scheduler.routing.admission import RingAdmission
from molink_scheduler.routing.line_watch import STALLED_S, STARVED_AFTER_S, LineWatch, Waiting
from molink_scheduler.routing.pace_estimator import PaceEstimator
from molink_scheduler.routing.prefix_mirror import PrefixMirror
from molink_scheduler.routing.ring_forecast import (
    LentStage,
    RingState,
    lender_waits_s,
    prompt_waits_s,
)
from molink_scheduler.token_ids import TOKEN_BYTES, token_bytes
from molink_scheduler.waiting_line import WaitingLine

ROUND_WEIGHT, ROUND_MAX_S = 0.1, 10.0
"""Weight of the newest time of a round in their mean, and the longest time that counts: longer ones
are pauses of a preempted sequence."""


@dataclass(slots=True)
class RingForecaster:
    """Forecaster of one ring, by what it has under way, how fast it is and what it has cached."""

    line: WaitingLine = field(default_factory=WaitingLine)
    pace: PaceEstimator = field(default_factory=PaceEstimator)
    admission: RingAdmission = field(default_factory=RingAdmission)
    order: PromptOrder = field(default_factory=PromptOrder)
    """Estimated order of waiting prompts; the head's own places depend on its cache."""
    mirror: PrefixMirror | None = None
    """None: the ring caches nothing."""
    round_s: float = 0.0
    """Smoothed time of a round, which brings a sequence one token or, with drafts, several; 0: not
    known yet. Whether a ring is slow is told by its rounds, however much each of them brings."""
    gaps: int = 0
    gaps_s: float = 0.0
    """How many rounds of sequences there were so far, and the sum of their times."""
    lent: tuple[LentStage, ...] = ()
    """Stages that have lenders, as they were last looked at."""
    watch: LineWatch = field(default_factory=LineWatch)
    """Over requests that are starved."""
    _rows_reported: int = 0
    """Rows of the tail of which its messages have told."""
    _tail_reports: int = 0
    """Count of the reports that the tail had sent at the last look."""

    @classmethod
    def of(cls, terms: RingTerms) -> "RingForecaster":
        """Forecaster of a ring that has done nothing yet."""
        caches = terms.prefix_cache and terms.caches_states
        mirror = PrefixMirror.of_ring(terms.cache_tokens) if caches else None
        return cls(order=PromptOrder(terms.own_work_times), mirror=mirror)

    def state(
        self,
        request: GenerationRequest | LiveSequence,
        others: Iterable[LiveSequence],
        tokens_per_s: float = 1.0,
    ) -> RingState:
        """The ring as a request meets it now. What it passes is not ahead."""
        cached = self._cached_tokens(request)
        place = self.order.place(max(1, _known_tokens(request) - cached))
        waiting_tokens = waiting_requests = outstanding_tokens = held_tokens = 0
        for live in others:
            outstanding_tokens += live.tokens
            held_tokens += max(live.known_tokens, live.held_tokens)
            if live.wait is not None and _goes_before(live, request.priority, place):
                waiting_tokens += live.uncomputed_tokens
                waiting_requests += 1
        return RingState(
            self.pace.pace,
            waiting_tokens=waiting_tokens,
            waiting_requests=waiting_requests,
            decoding=self.line.running,
            cached_tokens=cached,
            answer_tokens=self.pace.answer_tokens,
            outstanding_tokens=outstanding_tokens,
            tokens_per_s=max(1e-3, tokens_per_s),
            gaps=self.pace.gaps,
            held_tokens=held_tokens,
            lent=self.lent,
        )

    def _cached_tokens(self, request: GenerationRequest | LiveSequence) -> int:
        if self.mirror is None or request.sampling.prompt_logprobs is not None:
            return 0
        return self.mirror.cached_tokens(request.cache_salt, request.packed)

    def sequence_sent(self, live: LiveSequence, others: Iterable[LiveSequence], now: float) -> None:
        """A sequence was sent, so the ring is to compute it."""
        if not live.has_token and live.wait is None:
            live.state_when_sent = self.state(live, (one for one in others if one is not live))
            cached = live.state_when_sent.cached_tokens
            live.place = self.order.join(max(1, live.known_tokens - cached))
            live.place_uncached = live.place + self.order.times * cached
            if self.mirror is not None:
                self.mirror.computes(live.cache_salt, live.packed, live.wishes, now)
                if live.timeline is not None and live.timeline.attempts:
                    live.timeline.attempts[-1].wishes = live.wishes
        live.join(self.line, now)

    def was_cached(self, live: LiveSequence, tokens: int) -> None:
        """The ring says how much of a sequence it had cached; what cannot be is left out."""
        if live.state_when_sent is None or not 0 <= tokens < live.known_tokens:
            return
        if self.mirror is not None and tokens < live.state_when_sent.cached_tokens:
            self.mirror.missed(live.state_when_sent.cached_tokens - tokens)
        live.state_when_sent = replace(live.state_when_sent, cached_tokens=tokens)

    def round_came(self, live: LiveSequence, tokens: int, rows: int, now: float) -> None:
        """A sequence has its next tokens, all in one message; so many rows became of them, and of
        drafts in vain."""
        self._rows_reported += rows
        elapsed_s = min(ROUND_MAX_S, now - live.moved_at)
        if live.has_token:
            weight = ROUND_WEIGHT if self.round_s else 1.0
            self.round_s += weight * (elapsed_s - self.round_s)
            self.gaps, self.gaps_s = self.gaps + 1, self.gaps_s + elapsed_s
            self.line.round_came(elapsed_s)
            self.pace.round_came(max(0, self.line.running - 1), elapsed_s, tokens)
        elif live.state_when_sent is not None and live.wait is not None and not live.losses:
            self.watch.began(live.request_id, self._place(live, live.state_when_sent.cached_tokens))
            self.pace.first_token_came(
                live.state_when_sent, live.known_tokens, now - live.wait.since
            )
        live.has_token, live.moved_at = True, now
        live.begin(self.line, now)

    def lenders_changed(
        self, stages: tuple[LentStage, ...], all_live: Iterable[LiveSequence]
    ) -> None:
        """These stages have lenders now, and keep there what requests that decode hold beyond
        their own memory."""
        held_tokens = sum(live.held_tokens for live in all_live if live.has_token)
        self.lent, self.pace.waits_s = stages, lender_waits_s(stages, held_tokens)

    def starved(
        self,
        all_live: Collection[LiveSequence],
        terms: RingTerms,
        tail: StageProgress,
        now: float,
    ) -> set[int]:
        """Ids of the sequences that the ring's head starves. `tail`: what its last stage reports.
        Its rows that became no tokens are of prompts."""
        if tail.reports < self._tail_reports:  # Another stage is the tail.
            self.watch.begin_anew()
        rows = tail.rows_out - self._rows_reported if tail.reports != self._tail_reports else None
        self._tail_reports = tail.reports
        asked = sum(live.tokens + BLOCK_TOKENS for live in all_live)
        has_slots = terms.slots is None or len(all_live) <= terms.slots
        has_room = asked <= terms.kv_tokens_capacity and has_slots
        served = [one for one in all_live if one.tokens <= terms.kv_tokens_capacity]
        waiting = [one for one in served if not one.on_hold and _waits(one, now)]
        return self.watch.look(map(self._waiting, waiting), rows, now, has_room=has_room)

    def _waiting(self, live: LiveSequence) -> Waiting:
        prompt_s = self.pace.pace.prefill_s(live.known_tokens, self.line.running)
        lent_s = prompt_waits_s(self.lent, math.inf, 0, live.known_tokens)
        patience_s = live.stall_factor * (STARVED_AFTER_S + prompt_s + lent_s + self.round_s)
        return Waiting(live.request_id, self._place(live, 0), patience_s)

    def _place(self, live: LiveSequence, cached_tokens: int) -> tuple[int, int]:
        """Its priority and its place, with so many tokens of it cached."""
        return live.priority, live.place_uncached - self.order.times * cached_tokens

    def sequence_left(self, live: LiveSequence, now: float, *, has_ended: bool) -> None:
        """A sequence waits and runs here no more; what was computed of it stays cached."""
        if live.has_token:
            if has_ended:
                self.pace.answer_ended(live.generated_tokens)
            if self.mirror is not None:
                packed = live.packed + token_bytes(live.output)
                held = packed[: live.held_tokens * TOKEN_BYTES]
                self.mirror.computes(live.cache_salt, held, live.wishes, now)
        live.leave(self.line, now)

    def cache_lost(self) -> None:
        """The ring has lost what it had cached."""
        self.watch.begin_anew()
        if self.mirror is not None:
            self.mirror.clear()


def _known_tokens(request: GenerationRequest | LiveSequence) -> int:
    if isinstance(request, LiveSequence):
        return request.known_tokens
    return len(request.prompt_token_ids)


def _waits(live: LiveSequence, now: float) -> bool:
    """Whether it had no token lately."""
    return not live.has_token or now - live.moved_at > STALLED_S


def _goes_before(live: LiveSequence, priority: int, place: int) -> bool:
    """Whether one that waits is computed before a newcomer with this priority and place. A prompt
    that has begun is not interrupted."""
    has_begun = live.timeline is not None and live.timeline.prompt_tokens_done > 0
    return has_begun or (live.priority, live.place) <= (priority, place)
