"""When will the next decode micro-batch want this stage's outgoing link?

The paper gives three cases for T_a, the time that prefill may use the link. All three are one
subtraction: the moment at which the next decode is due, less the present t_c.

    a decode computes here since t_s    due at t_s + T_d          (case 1: t_c = t_s, 2: t_c > t_s)
    none does                           due at t_p + T_o + T_m    (case 3: one round after the last)

So the core keeps the due time and forgets the cases, and the rule that uses it (`JustInTime`) needs
no knowledge of stages and rounds. Rejected: handing all six symbols to the chunk rule, which would
tie every link to a cost model that the other policies do without.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DecodeOutlook", "Hop", "round_network_s"]

TOKEN_BYTES = 2
"""The paper's tok_sz: what one sampled token costs on the hop from tail to head."""


@dataclass(frozen=True, slots=True)
class DecodeOutlook:
    """What a stage knows about the decode that will leave it next.

    With several micro-batches on the ring, fill in the one that is due first.
    """

    step_s: float
    """T_d(x): compute time of one decode step of x rows on this stage, from its profile."""
    step_started_at: float | None = None
    """t_s: when the decode step that computes here now began; None when none does."""
    round_started_at: float | None = None
    """t_p: when the first decode batch of the last iteration finished here; None before one did."""
    round_compute_s: float = 0.0
    """T_o: the sum of T_d,i(n) over all stages of the ring, this one included."""
    round_network_s: float = 0.0
    """T_m: time on the wire in one round, see `round_network_s`."""

    @property
    def due_at(self) -> float | None:
        """When the next decode is predicted to want the link; None when nothing predicts one."""
        if self.step_started_at is not None:
            return self.step_started_at + self.step_s
        if self.round_started_at is not None:
            return self.round_started_at + self.round_compute_s + self.round_network_s
        return None


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of the ring as the cost model sees it."""

    latency_s: float
    """Lat_i: one way."""
    rate_bytes_per_s: float
    """Band_i."""


def round_network_s(hops: Sequence[Hop], rows: int, activation_bytes: int) -> float:
    """T_m: what a round of `rows` (n) decode tokens spends on the wire.

    `activation_bytes` is act_sz, one token's residual stream as the codec sends it. The last hop
    returns from tail to head and carries tokens only.
    """
    *forward, closing = hops
    latencies_s = sum(hop.latency_s for hop in hops)
    activations_s = sum(activation_bytes * rows / hop.rate_bytes_per_s for hop in forward)
    return latencies_s + activations_s + TOKEN_BYTES * rows / closing.rate_bytes_per_s
