"""Which ring serves a new request? The one that would be done with all its work first.

Work is counted in tokens that requests may still come to, prompt and answer, because that is what
the coordinator knows when a request comes in. Rejected: the fewest requests, which takes a prompt
of 8,000 tokens for one of 80; and taking turns, which fills a slow ring as fast as a quick one.

Pure: the coordinator keeps count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RingLoad", "choose_ring"]


@dataclass(slots=True)
class RingLoad:
    """What one ring has taken on."""

    outstanding_tokens: int = 0
    """Of requests that have not ended, prompt and all that they may generate."""
    speed: float = 1.0
    """Tokens per second, or any measure in which rings can be compared; above 0."""


def choose_ring(loads: Sequence[RingLoad], request_tokens: int) -> int:
    """Index of the ring on which a request of so many tokens ends first; the first of equals."""
    assert loads, "there is at least one ring"
    return min(
        range(len(loads)),
        key=lambda ring: (loads[ring].outstanding_tokens + request_tokens) / loads[ring].speed,
    )
