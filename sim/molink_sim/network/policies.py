"""Orders on a link by name: the product's, and those that it is measured against.

A policy is an order (`PriorityQueues`, `FifoQueue`, `FairQueue`) and a size of pieces (a
`ChunkRule`). The product has only `molink`. The others are the paper's rule (`just_in_time`), its
algorithm to the letter (`paper`), pieces of one size (`quantum`), and what other systems do
(`fifo`, `fair`). Simulated links take each of them, and so do experiments over real links
(`tools.experiments.harness.policy_ring`).
"""

from molink_scheduler.link.priority_queues import PriorityQueues, just_in_time
from molink_scheduler.link.transmission import LinkView, TransmissionQueue
from molink_sim.network.baseline_queues import FairQueue, FifoQueue
from molink_sim.network.paper_queue import PaperQueue

PAPER_POLICY = "paper"
"""Algorithm 1 to the letter; the core's `just_in_time` differs as docs/scheduling.md says."""

POLICIES = ("molink", "just_in_time", PAPER_POLICY, "quantum", "fifo", "fair")
"""Names that any link takes."""

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
            return PaperQueue()
    raise ValueError(f"unknown policy {policy!r}; there are {', '.join(POLICIES)}")
