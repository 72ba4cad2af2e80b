"""Forecasts for a newcomer: how soon a ring would answer, and how fast it would go on.

Mooncake's Algorithm 1 (FAST'25) forecasts the time to the first token as what waits there plus the
prompt's own uncached tokens, by a fit of its GPUs. A ring of home PCs computes a prompt in chunks
that its stages work on at once, so one pace stands for all of it: tokens per second through the
slowest stage or link, whichever it is. Decode goes first there, so a prompt takes as much longer as
the answers that decode take of the ring.

How many decode once a newcomer's prompt is computed is forecast too: each answer ends at a rate of
one in its mean length, however long it is already, and prompts ahead become answers one after the
other until then. So nobody's age needs to be known. Mooncake takes one duration for all and counts
who is older as gone; where that duration is twice too long it refuses two to three times as many.

A stage whose requests hold more than its own memory has some of their KV at a lender, and each of
its decode steps waits for that. The learned pace is that of steps that wait for nobody; what a step
waits for comes on top, as long as the stage tells, or by measured echoes before it has told. Steps
of a prompt wait for each of their rows and each key at the lender that it reads, be it that the
lender attends or that the keys come.

Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from molink_scheduler.routing.gap_times import NO_GAPS, GapTimes

ANSWER_TOKENS = 200.0
"""Mean length of answers before any has ended: about that of Mooncake's traces (182 to 343)."""

SLOWER_PREFILL_MAX = 4.0
"""Most times as long as alone that a prompt takes beside any number of answers: its chunks get
their turn between two rounds."""


@dataclass(frozen=True, slots=True)
class RingPace:
    """Speed of a ring, as its forecasts need it."""

    prefill_tokens_per_s: float
    """Rate of prompts through the slowest stage or link, while nobody decodes; above 0."""
    first_token_s: float
    """Seconds to the first token after hardly a prompt, on the idle ring: about one round."""
    tpot_alone_s: float
    """Seconds between two tokens of an answer that decodes alone; above 0."""
    tpot_each_s: float = 0.0
    """Seconds that every other answer adds to the time per token."""

    def __post_init__(self) -> None:
        assert self.prefill_tokens_per_s > 0, "a ring computes prompts"
        assert self.tpot_alone_s > 0, "a token takes time"
        assert min(self.first_token_s, self.tpot_each_s) >= 0, "no time is negative"

    @classmethod
    def planned(
        cls, prompt_tokens: int, ttft_s: float, tpot_alone_s: float, tpot_s: float, users: int
    ) -> "RingPace":
        """Pace as a plan forecasts it: `ttft_s` of a prompt of so many tokens, `tpot_s` of so many
        users."""
        alone_s = max(1e-6, tpot_alone_s)
        prefill_s = max(1e-6, ttft_s - alone_s)
        each_s = max(0.0, tpot_s - alone_s) / max(1, users - 1)
        return cls(max(1, prompt_tokens) / prefill_s, alone_s, alone_s, each_s)

    def tpot_s(self, others: float) -> float:
        """Seconds between two tokens of an answer beside so many others."""
        return self.tpot_alone_s + self.tpot_each_s * others

    def prefill_s(self, tokens: float, decoding: float) -> float:
        """Seconds to compute so many prompt tokens while so many answers decode."""
        slower = min(SLOWER_PREFILL_MAX, self.tpot_s(decoding) / self.tpot_alone_s)
        return slower * tokens / self.prefill_tokens_per_s


@dataclass(frozen=True, slots=True)
class LentStage:
    """Stage of a ring that has a lender."""

    own_tokens: int
    """Tokens of KV that its own memory holds; what is beyond them lies at the lender."""
    wait_s: float
    """Seconds for which its decode steps wait for the lender where some of their KV is there."""
    row_key_wait_s: float = 0.0
    """Seconds for which steps of prompts wait for each row and each token at the lender that it
    reads; 0: not told yet."""

    def prompt_wait_s(self, held_tokens: float, start: int, stop: float) -> float:
        """Seconds for which a prompt's tokens from `start` to `stop` wait beside requests that hold
        so many. The longest requests lend their first tokens: a row reads those there that it has
        before it, but for what others leave of the stage's own memory."""
        at_home = max(0.0, self.own_tokens - held_tokens)
        before, after = (max(0.0, tokens - at_home) for tokens in (start, stop))
        return self.row_key_wait_s * (after**2 - before**2) / 2


def lender_waits_s(stages: Iterable[LentStage], held_tokens: int) -> float:
    """Seconds by which lenders lengthen a token's time on a ring whose requests hold so many."""
    return sum(one.wait_s for one in stages if held_tokens > one.own_tokens)


def prompt_waits_s(
    stages: Iterable[LentStage], held_tokens: float, start: int, stop: float
) -> float:
    """Seconds by which lenders lengthen the time in which a ring computes a prompt's tokens from
    `start` to `stop`: its stages compute at the same time, so as much as the slowest one waits."""
    return max((one.prompt_wait_s(held_tokens, start, stop) for one in stages), default=0.0)


@dataclass(frozen=True, slots=True)
class RingState:
    """State of a ring, as a request sees it that might go there."""

    pace: RingPace
    waiting_tokens: int = 0
    """Prompt tokens, not cached, that the ring computes before this request's: of the requests that
    wait with its priority or a higher one."""
    waiting_requests: int = 0
    """Requests that wait with this request's priority or a higher one."""
    decoding: int = 0
    """Answers between their first token and their last."""
    cached_tokens: int = 0
    """Cached tokens of this request's prompt."""
    answer_tokens: float = ANSWER_TOKENS
    """Mean length of the ring's answers; above 0."""
    outstanding_tokens: int = 0
    """Tokens of all requests that have not ended, prompt and all that they may generate."""
    tokens_per_s: float = 1.0
    """Rate by which rings' outstanding tokens are compared; above 0."""
    is_home: bool = False
    """Whether it took the last request of the same session."""
    gaps: GapTimes = field(default=NO_GAPS, repr=False)
    """How far its gaps between tokens are beyond its pace; kept up by the ring's own gaps."""
    held_tokens: int = 0
    """Tokens that are known of the other requests, prompts that wait among them: what they hold
    when this request decodes, at least."""
    lent: tuple[LentStage, ...] = ()
    """Stages that have lenders."""

    @property
    def requests(self) -> int:
        """Requests that wait ahead or decode."""
        return self.waiting_requests + self.decoding

    def seconds_outstanding(self, tokens: int) -> float:
        """Seconds until all its work and a request of so many tokens would be done."""
        return (self.outstanding_tokens + tokens) / self.tokens_per_s


def if_idle(ring: RingState) -> RingState:
    """State of the same ring without any other request."""
    idle = replace(ring, waiting_tokens=0, waiting_requests=0, decoding=0, outstanding_tokens=0)
    return replace(idle, held_tokens=0)


def forecast_ttft_s(ring: RingState, prompt_tokens: int) -> float:
    """Seconds until a request that comes now would have its first token."""
    waiting_s = ring.pace.prefill_s(ring.waiting_tokens, ring.decoding) + _ahead_wait_s(ring)
    return ring.pace.first_token_s + waiting_s + own_prefill_s(ring, prompt_tokens)


def own_prefill_s(ring: RingState, prompt_tokens: int) -> float:
    """Seconds that the ring computes the part of a request's own prompt that is not cached."""
    computed_s = ring.pace.prefill_s(max(1, prompt_tokens - ring.cached_tokens), ring.decoding)
    return computed_s + _own_wait_s(ring, prompt_tokens)


def ttft_waits_s(ring: RingState, prompt_tokens: int) -> float:
    """Seconds of a forecast first token for which the ring waits for lenders."""
    return _ahead_wait_s(ring) + _own_wait_s(ring, prompt_tokens)


def decoding_then(ring: RingState, after_s: float) -> float:
    """Likely number of others that decode after so long: those that decode now and have not ended
    by then, and those that wait ahead and have begun and not ended."""
    mean_s = ring.answer_tokens * ring.pace.tpot_s(max(0, ring.decoding - 1))
    ends = after_s / max(1e-9, mean_s)
    begun = -math.expm1(-ends) / ends if ends > 0 else 1.0
    return ring.decoding * math.exp(-ends) + ring.waiting_requests * begun


def forecast_tpot_s(ring: RingState, prompt_tokens: int, *, predicts: bool = True) -> float:
    """Seconds between two tokens of a request that comes now, when its prompt will have been
    computed; without `predicts` as if it were now."""
    others = _others(ring, prompt_tokens, predicts=predicts)
    return ring.pace.tpot_s(others) + _waits_s(ring, prompt_tokens)


def forecast_tbt_s(
    ring: RingState, prompt_tokens: int, percentile: float, *, predicts: bool = True
) -> float:
    """Seconds that so many per cent of the gaps between tokens stay within, of a request that comes
    now; the pace itself while too few gaps have told."""
    others = _others(ring, prompt_tokens, predicts=predicts)
    alone_s = ring.pace.tpot_s(others) * ring.gaps.times(others, percentile)
    return alone_s + _waits_s(ring, prompt_tokens)


def _others(ring: RingState, prompt_tokens: int, *, predicts: bool) -> float:
    if not predicts:
        return ring.decoding
    return decoding_then(ring, forecast_ttft_s(ring, prompt_tokens))


def _own_wait_s(ring: RingState, prompt_tokens: int) -> float:
    stop = max(ring.cached_tokens + 1, prompt_tokens)
    return prompt_waits_s(ring.lent, ring.held_tokens, ring.cached_tokens, stop)


def _ahead_wait_s(ring: RingState) -> float:
    """Seconds that prompts ahead wait for lenders, as many of one length that come one by one."""
    if not (count := ring.waiting_requests):
        return 0.0
    each = ring.waiting_tokens / count
    held = ring.held_tokens - each * (count + 1) / 2
    return count * prompt_waits_s(ring.lent, held, 0, each)


def _waits_s(ring: RingState, prompt_tokens: int) -> float:
    return lender_waits_s(ring.lent, ring.held_tokens + prompt_tokens)
