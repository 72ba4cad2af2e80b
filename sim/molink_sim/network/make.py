"""The link that a system drives over a wire."""

from molink_scheduler.link.priority_queues import (
    DECISIONS_MAX,
    LinkView,
    PriorityQueues,
    StarvationLimits,
    just_in_time,
)
from molink_scheduler.link.transmission import TransmissionQueue, make_transmission
from molink_sim.clock import Clock
from molink_sim.network.ideal import IdealLink
from molink_sim.network.line import Line
from molink_sim.network.link import Deliver, Link
from molink_sim.network.paced import PacedLink
from molink_sim.network.unpaced import FairLink, FifoLink, SerialLink
from molink_sim.scenario import SystemSpec

__all__ = ["LINK_MODELS", "PAPER_POLICY", "make_link"]

LINK_MODELS = ("paced", "ideal")

PAPER_POLICY = "paper"
"""Algorithm 1 to the letter; the core's `just_in_time` differs as docs/scheduling.md says."""

NEVER = 1 << 62
"""A limit that the paper does not have."""


def make_link(system: SystemSpec, clock: Clock, line: Line, deliver: Deliver) -> Link:
    """A link at rest, as the system's settings want it."""
    if system.paced and system.link_model == "ideal":
        return IdealLink(clock, line, deliver)
    if system.paced:
        return PacedLink.over(clock, line, _queue(system.policy), deliver)
    if system.policy == "fifo":
        return FifoLink(clock, line, deliver)
    if system.policy == "fair":
        return FairLink(clock, line, deliver)
    return SerialLink(clock, line, _queue(system.policy), deliver)


def _queue(policy: str) -> TransmissionQueue:
    if policy != PAPER_POLICY:
        return make_transmission(policy)
    limits = StarvationLimits(DECISIONS_MAX, decode_bytes_max=NEVER, wait_s_max=NEVER)
    return PriorityQueues(just_in_time, _all_that_is_left, limits)


def _all_that_is_left(now: float, link: LinkView) -> int:
    """The paper's turn: once prefill has waited for N decisions, the whole remainder goes."""
    return NEVER
