"""Slowdown of a ring's member against what its plan counts with: its steps, and its link.

A node reports step times before it serves, and its neighbours measure its line. What it does while
it serves is held against both. A link is measured by its own pacer, which learns a lower rate only
from bytes that queue; so a rate says something only while bytes wait for the link. An idle one
keeps what it knew, and one that was opened anew begins with a guess.

Pure.
"""

import math
from dataclasses import dataclass

from molink.control.messages.payloads import StepCost

SLOWER_FACTOR = 3.0
"""A layer is timed with 128 tokens of context while its owner is away. Thousands of tokens double a
step on a CPU, and so do its owner's programs; three times as long is another PC than the one that
was reported."""

FORGIVEN_FACTOR = 2.0
"""A node that was found slow counts as slow until its steps take less than this, so that it does
not change back and forth at the edge."""

STEPS_MIN = 100
"""Steps that a stage has computed before its times count: the first ones are of cold memory."""

FACTOR_MAX = 1000.0

LINK_SLOWER_FACTOR = 3.0
"""A line that others share carries half in the evening; a third of what was measured is another
line, or an owner who fills it."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Factor by which a node's steps take longer than reported, 1: as reported or nearly; and what
    its link carries if that is far less than was planned."""

    decode: float = 1.0
    prefill: float = 1.0
    link_mbps: float = math.inf
    """Rate of its link to the next stage; infinite: about as planned."""

    @property
    def worst(self) -> float:
        """The greater factor of both kinds of steps."""
        return max(self.decode, self.prefill)

    @property
    def clauses(self) -> list[str]:
        """Clauses about the node that say what is slow; none where nothing is."""
        found = []
        if self.worst > 1:
            found.append(f"computes {self.worst:.1f} times as long as it has told")
        if self.link_mbps < math.inf:
            found.append(f"sends {self.link_mbps:.1f} Mbps, far less than was measured before")
        return found


AS_REPORTED = Slowdown()


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """Step times of a stage that serves, by its own report."""

    steps: int
    """Computed so far."""
    decode_step_s: float
    """Smoothed; 0: none yet."""
    prefill_row_s: float


def measured_slowdown(
    reported_decode_s: float, reported_row_s: float, seen: StepsSeen, before: Slowdown = AS_REPORTED
) -> Slowdown | None:
    """Slowdown of a stage whose decode step was to take `reported_decode_s`; None: not known yet.

    `before`: what it was found to be. `reported_row_s`: a row of a prompt. Prompts of few rows cost
    as much as a decode step, and how many rows there were is not known: a row counts as slow only
    beyond what a decode step was to take. What computes decode slowly computes prompts slowly.
    """
    if seen.steps < STEPS_MIN:
        return None
    decode = _slowness(seen.decode_step_s, reported_decode_s, before.decode)
    prefill = _slowness(seen.prefill_row_s, max(reported_row_s, reported_decode_s), before.prefill)
    return Slowdown(decode, max(decode, prefill))


def _slowness(seen_s: float, reported_s: float, before: float) -> float:
    """1 unless the difference is plain."""
    if not seen_s > 0:  # NaN too: it means nothing.
        return 1.0
    times = seen_s / reported_s if reported_s > 0 else FACTOR_MAX
    bound = SLOWER_FACTOR if before <= 1 else FORGIVEN_FACTOR
    return min(times, FACTOR_MAX) if times > bound else 1.0


def slowed_steps(steps: StepCost, slowdown: Slowdown) -> StepCost:
    """Step times of a node as they are planned with."""
    return steps.model_copy(
        update={
            "decode_fixed_s": steps.decode_fixed_s * slowdown.decode,
            "decode_row_s": steps.decode_row_s * slowdown.decode,
            "prefill_row_s": steps.prefill_row_s * slowdown.prefill,
            "head_row_s": steps.head_row_s * slowdown.decode,
        }
    )


def measured_link_mbps(rate_mbps: float, planned_mbps: float, before: float = math.inf) -> float:
    """Rate to plan a link with whose own pacer measures `rate_mbps`; infinite: as before it served.
    `planned_mbps` 0: nothing was planned. `before`: the rate that it was found to carry."""
    bound = LINK_SLOWER_FACTOR if before == math.inf else FORGIVEN_FACTOR
    return rate_mbps if 0 < bound * rate_mbps < planned_mbps else math.inf
