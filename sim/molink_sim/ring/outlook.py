"""What the coordinator knows of one simulated ring when it chooses where a request goes.

It is told what a real one is told: what it sent, when tokens came, and how much of a prompt was
cached. Mirror, order, pace and admission are the product's own.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.prompt_order import PromptOrder
from molink_scheduler.routing.pace_estimator import PaceEstimator
from molink_scheduler.routing.prefix_mirror import PrefixMirror
from molink_scheduler.routing.ring_forecast import RingPace, RingState
from molink_scheduler.token_ids import TOKEN_BYTES
from molink_sim.network.line import BYTES_PER_MEGABIT
from molink_sim.scenario import RingSpec

PLANNED_CONTEXT_TOKENS, PLANNED_ANSWERS = 4096, 8
"""Context and number of answers at which a ring's pace is planned."""


@dataclass(slots=True)
class _Unanswered:
    """Request whose first token has not come."""

    met: RingState
    place: int
    since: float
    tokens: int
    """Tokens of its prompt that are to be computed."""


@dataclass(slots=True)
class RingOutlook:
    """Requests of one ring as its coordinator sees them, and its pace as far as it is known."""

    pace: PaceEstimator
    order: PromptOrder
    mirror: PrefixMirror
    """Copy of the ring's directory; one that caches nothing has room for nothing."""
    _waiting: dict[int, _Unanswered] = field(init=False, default_factory=dict)
    _decoding: dict[int, float] = field(init=False, default_factory=dict)
    """Time of the last token of each request that gets some."""

    def state(self, prompt: bytes, outstanding_tokens: int) -> RingState:
        """The ring as a request meets it now."""
        cached = self.mirror.cached_tokens("", prompt)
        place = self.order.place(max(1, len(prompt) // TOKEN_BYTES - cached))
        ahead = [one for one in self._waiting.values() if one.place <= place]
        return RingState(
            self.pace.pace,
            sum(one.tokens for one in ahead),
            len(ahead),
            len(self._decoding),
            cached,
            self.pace.answer_tokens,
            outstanding_tokens,
            gaps=self.pace.gaps,
        )

    def sent(self, number: int, prompt: bytes, now: float) -> None:
        """The ring is to compute a prompt."""
        met = self.state(prompt, 0)
        tokens = max(1, len(prompt) // TOKEN_BYTES - met.cached_tokens)
        self._waiting[number] = _Unanswered(met, self.order.join(tokens), now, tokens)
        self.computes(prompt)

    def computes(self, tokens: bytes) -> None:
        """The ring has computed these tokens, or will have."""
        if self.mirror.blocks_max:
            self.mirror.computes("", tokens)

    def was_cached(self, number: int, tokens: int) -> None:
        """The ring says how much of a prompt it had cached."""
        if (one := self._waiting.get(number)) is not None and tokens < one.met.cached_tokens:
            self.mirror.missed(one.met.cached_tokens - tokens)

    def token_came(self, number: int, now: float) -> None:
        """A request has its next token."""
        if (one := self._waiting.pop(number, None)) is not None:
            computed = one.tokens + one.met.cached_tokens
            self.pace.first_token_came(one.met, computed, now - one.since)
        elif (before := self._decoding.get(number)) is not None:
            self.pace.round_came(len(self._decoding) - 1, now - before)
        self._decoding[number] = now

    def left(self, number: int, answer_tokens: int) -> None:
        """A request is no more on the ring; one that has ended there had an answer."""
        self._waiting.pop(number, None)
        if self._decoding.pop(number, None) is not None and answer_tokens:
            self.pace.answer_ended(answer_tokens)


def outlook_of(ring: RingSpec, kv_tokens: int, order: PromptOrder) -> RingOutlook:
    """Outlook on a ring that has done nothing yet; its devices cache so many tokens, 0: it caches
    nothing."""
    tiers = CacheTiers.of_ring([stage.tiers for stage in ring.stages])
    below = BLOCK_TOKENS * (tiers.host_blocks + tiers.file_blocks)
    mirror = PrefixMirror.of_ring(kv_tokens + below if kv_tokens else 0)
    return RingOutlook(PaceEstimator(planned_pace(ring)), order, mirror)


def planned_pace(ring: RingSpec) -> RingPace:
    """Pace of an idle ring by its description, as a plan forecasts it."""
    hops = ring.links[:-1]
    rows_s = [ring.row_bytes / (link.mbps * BYTES_PER_MEGABIT) for link in hops]
    spans_s = [one.cost.step_s(PREFILL, SPAN_TOKENS, SPAN_TOKENS, 1) for one in ring.stages]
    row_s = max([step_s / SPAN_TOKENS for step_s in spans_s] + rows_s)
    delays_s = sum(link.one_way_s for link in ring.links)

    def round_s(answers: int) -> float:
        keys = answers * PLANNED_CONTEXT_TOKENS
        steps = sum(one.cost.step_s(DECODE, answers, keys, answers) for one in ring.stages)
        return delays_s + steps + answers * sum(rows_s)

    alone_s = max(1e-6, round_s(1))
    each_s = max(0.0, (round_s(PLANNED_ANSWERS) - alone_s) / (PLANNED_ANSWERS - 1))
    return RingPace(1 / max(1e-9, row_s), alone_s, alone_s, each_s)
