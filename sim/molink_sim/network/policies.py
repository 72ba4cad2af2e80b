"""Orders on a link by name: the product's, and those that it is measured against.

A policy is an order (`PriorityQueues`, `FifoQueue`, `FairQueue`) and a size of pieces (a
`ChunkRule`). The product has only `molink`. The others are the paper's rule (`just_in_time`, and
`paper` with its turns as well), pieces of one size (`quantum`), and what other systems do (`fifo`,
`fair`). Simulated links take each of them, and so do experiments over real links
(`tools.experiments.harness.policy_ring`).
"""

from molink_scheduler.link.priority_queues import (
    DECISIONS_MAX,
    PriorityQueues,
    StarvationLimits,
    just_in_time,
)
from molink_scheduler.link.transmission import LinkView, TransmissionQueue
from molink_sim.network.baseline_queues import FairQueue, FifoQueue

POLICIES = ("molink", "just_in_time", "quantum", "fifo", "fair")
"""Names that any link takes."""

PAPER_POLICY = "paper"
"""Algorithm 1 to the letter; the core's `just_in_time` differs as docs/scheduling.md says."""

NEVER = 1 << 62
"""A limit that the paper does not have."""

FIXED_QUANTUM_BYTES = 16 * 2**10
"""Best p50 / p99 of decode at 20 Mbps: 37 / 41 ms, against 41 / 52 for 32 KB and 47 / 66 for 64."""


def fixed_quantum(now: float, link: LinkView) -> int:
    """A quantum in bytes instead of time, which is right for one rate only."""
    return FIXED_QUANTUM_BYTES


def make_queue(policy: str) -> TransmissionQueue:
    """The queue of one link. Raises ValueError for an unknown policy."""
    match policy:
        case "molink":
            return PriorityQueues()
        case "just_in_time":
            return PriorityQueues(just_in_time)
        case "quantum":
            return PriorityQueues(fixed_quantum, fixed_quantum)
        case "fifo":
            return FifoQueue()
        case "fair":
            return FairQueue()
        case "paper":
            limits = StarvationLimits(DECISIONS_MAX, decode_bytes_max=NEVER, wait_s_max=NEVER)
            return PriorityQueues(just_in_time, _all_that_is_left, limits)
    raise ValueError(f"unknown policy {policy!r}; there are {', '.join(POLICIES)}")


def _all_that_is_left(now: float, link: LinkView) -> int:
    """The paper's turn: once prefill has waited for N decisions, the whole remainder goes."""
    return NEVER
