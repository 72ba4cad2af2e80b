"""How much of a prefill may leave before somebody looks again whether decode is waiting?

Whatever has been handed to the link cannot be called back, so a decode that arrives a moment later
waits for it. Small pieces make that wait short and cost a header and a decision each.

`Quantum` sends a few milliseconds of the measured rate, whatever is expected: a wait of 8 ms hurts
nobody, and it needs no forecast that could be wrong. `FixedQuantum` is the same in bytes, which is
right for one rate only. `JustInTime` is the paper's rule (section on chunk size; T_a in three
cases): it predicts when the next decode will want the link and fills the time until then. Over home
links its pieces come to 80 KB up to 1.9 MB, and what arrives ahead of the forecast waits for all of
one. Rejected: sizing pieces by the bytes that are left, which says nothing about who else may come.

Measured on a 20 Mbps, 30 ms link: docs/scheduling.md.
"""

from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.link.backlog import LinkView

__all__ = ["ChunkRule", "FixedQuantum", "JustInTime", "Quantum"]

CHUNK_BYTES_MIN = 4 * 2**10
"""Below it the header and the acknowledgement (about 200 bytes) are over 5 % of what is sent."""

CHUNK_BYTES_MAX = 64 * 2**10
"""Beyond it nothing is gained: 64 KB already cost 0.3 % in headers, and 256 KB were 5 % worse."""

QUANTUM_S = 0.008
"""What a decode may have to wait for a piece. Pieces of this duration follow a link that goes from
20 to 5 Mbps and back; with pieces of fixed size the rate estimate stuck at 9 to 13 Mbps."""

FIXED_QUANTUM_BYTES = 16 * 2**10
"""Best p50 / p99 of decode at 20 Mbps: 37 / 41 ms, against 41 / 52 for 32 KB and 47 / 66 for 64."""

JUST_IN_TIME_BYTES_MAX = 4 * 2**20
"""The paper's largest chunk is 1.9 MB at 100 Mbps; a forecast on a faster link, or a wrong one,
must not hand out more than twice that."""


class ChunkRule(Protocol):
    """Decides the size of the next piece of prefill; callers cut it to what is left."""

    def chunk_bytes(self, now: float, link: LinkView) -> int:
        """Most bytes to hand out now; at least one."""
        ...


@dataclass(frozen=True, slots=True)
class Quantum:
    """A piece of constant duration at the measured rate, within limits."""

    quantum_s: float = QUANTUM_S

    def __post_init__(self) -> None:
        if not 0 < self.quantum_s <= 1:
            raise ValueError(f"a quantum lasts up to 1 s, got {self.quantum_s}")

    def chunk_bytes(self, now: float, link: LinkView) -> int:
        """The bytes that the link carries in one quantum."""
        wanted = self.quantum_s * link.rate_bytes_per_s
        return int(min(max(wanted, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class FixedQuantum:
    """A piece of constant size."""

    quantum_bytes: int = FIXED_QUANTUM_BYTES

    def __post_init__(self) -> None:
        if not CHUNK_BYTES_MIN <= self.quantum_bytes <= CHUNK_BYTES_MAX:
            raise ValueError(
                f"a quantum holds {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes, "
                f"got {self.quantum_bytes}"
            )

    def chunk_bytes(self, now: float, link: LinkView) -> int:
        """Always the same."""
        return self.quantum_bytes


@dataclass(frozen=True, slots=True)
class JustInTime:
    """The paper's rule: fill the link until the next decode is due, T_a x Band."""

    without_forecast: Quantum = field(default_factory=Quantum)
    """No forecast does not mean no decode: the first one after a prompt comes unannounced."""

    def chunk_bytes(self, now: float, link: LinkView) -> int:
        """T_a x Band; a smallest piece when the decode is overdue, so that the link never idles."""
        if link.next_decode_due_at is None:
            return self.without_forecast.chunk_bytes(now, link)
        available_s = link.next_decode_due_at - now
        wanted = available_s * link.rate_bytes_per_s
        return round(min(max(wanted, CHUNK_BYTES_MIN), JUST_IN_TIME_BYTES_MAX))
