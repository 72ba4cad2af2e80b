"""What do we believe of what a node says of itself?

A node may lie, by mistake or not, and a plan that believes it puts a ring behind its slowness. So
what it says is held against what others see: the receiver counts what a sender's line carries, and
a stage that serves shows how long its steps take. Only what is seen to be worse counts; nobody is
planned for better than it says.

Two that stand together can still vouch for each other; the coordinator sees its own share only.
Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from molink.control.messages.payloads import StepCost

__all__ = [
    "AS_TOLD",
    "DOUBT_FACTOR",
    "FORGIVEN_FACTOR",
    "SLOWER_FACTOR",
    "STEPS_MIN",
    "UPLOAD_UNSEEN_MBPS",
    "Slowdown",
    "StepsSeen",
    "believed_rate",
    "believed_upload",
    "is_doubtful",
    "pace_of",
    "paced",
]

UPLOAD_UNSEEN_MBPS = 20.0
"""Of a node that nobody has seen send: a usual home uplink, so that saying nothing, or anything,
brings no node to the front."""

DOUBT_FACTOR = 1.5
"""Both ends count the same bytes by clocks of their own, over windows that differ a little. What
is told beyond this is called a doubt; the plan counts with what was seen in any case."""

SLOWER_FACTOR = 3.0
"""A layer is timed with 128 tokens of context and nobody at the PC. Thousands of tokens double a
step on a CPU, and so do its owner's programs; three times as long is another PC than the one that
was told of."""

FORGIVEN_FACTOR = 2.0
"""Whose steps were found slow counts as slow until they take less than this: no going to and fro
at the edge."""

STEPS_MIN = 100
"""That a stage has computed before its times count: the first ones are of cold memory."""

FACTOR_MAX = 1000.0


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times as long as told a node's steps take; 1: as told, or nearly so."""

    decode: float = 1.0
    prefill: float = 1.0

    @property
    def worst(self) -> float:
        """Of both."""
        return max(self.decode, self.prefill)


AS_TOLD = Slowdown()


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """What a stage that serves says of its steps."""

    steps: int
    """Computed so far."""
    decode_step_s: float
    """Smoothed; 0: none yet."""
    prefill_row_s: float


def believed_rate(told_mbps: float, seen_mbps: float | None) -> float:
    """Of a link, as its sender told and its receiver saw; 0: nobody knows."""
    if not seen_mbps:
        return told_mbps
    return min(told_mbps, seen_mbps) if told_mbps else seen_mbps


def believed_upload(told_mbps: float, seen_mbps: Iterable[float]) -> float:
    """Of a node, as it told (0: nothing) and all who received from it saw. Never 0."""
    best = max(seen_mbps, default=0.0) or UPLOAD_UNSEEN_MBPS
    return min(told_mbps, best) if told_mbps else best


def is_doubtful(told_mbps: float, believed_mbps: float) -> bool:
    """Whether what was told is so far from what is believed that people should know."""
    return told_mbps > DOUBT_FACTOR * believed_mbps


def pace_of(
    told_decode_s: float, told_row_s: float, seen: StepsSeen, before: Slowdown = AS_TOLD
) -> Slowdown | None:
    """Of a stage whose decode step was to take `told_decode_s`; None: it cannot be told yet.

    `before`: what it was found to be. `told_row_s`: a row of a prompt. Prompts of few rows cost as
    much as a decode step, and how many rows there were is not told: a row counts as slow only
    beyond what a decode step was to take. What computes decode slowly computes prompts slowly.
    """
    if seen.steps < STEPS_MIN:
        return None
    decode = _slowness(seen.decode_step_s, told_decode_s, before.decode)
    prefill = _slowness(seen.prefill_row_s, max(told_row_s, told_decode_s), before.prefill)
    return Slowdown(decode, max(decode, prefill))


def _slowness(seen_s: float, told_s: float, before: float) -> float:
    """1 unless it is beyond doubt."""
    if not seen_s > 0:  # NaN too: it says nothing.
        return 1.0
    times = seen_s / told_s if told_s > 0 else FACTOR_MAX
    bound = SLOWER_FACTOR if before <= 1 else FORGIVEN_FACTOR
    return min(times, FACTOR_MAX) if times > bound else 1.0


def paced(steps: StepCost, pace: Slowdown) -> StepCost:
    """A node's step times as they are planned with."""
    return steps.model_copy(
        update={
            "decode_fixed_s": steps.decode_fixed_s * pace.decode,
            "decode_row_s": steps.decode_row_s * pace.decode,
            "prefill_row_s": steps.prefill_row_s * pace.prefill,
            "head_row_s": steps.head_row_s * pace.decode,
        }
    )
