"""Order in which ends of chains of cached KV blocks are dropped when room is wanted.

Mooncake (FAST'25, table 2 of its first version) compares three orders on the same traces, with this
result that ours repeats (docs/benchmarks/prefix-cache.md): the least recently used goes first is as
good as any, and the simplest. A ring runs that one; the others are for the simulator.

Only ends of chains are ever asked for: a block without those before it is worth nothing.
"""

from typing import Protocol


class CachedUse(Protocol):
    """Use that was made of the last blocks of a chain."""

    last_used: int
    """Moment of the last use, a count that rises with every use of the cache."""
    uses: int
    """Requests that they served, the one that computed them included."""
    depth_blocks: int
    """Blocks from the first of the prompt to their last."""


class EvictionOrder(Protocol):
    """Order in which unused ends of chains are dropped."""

    def __call__(self, use: CachedUse) -> tuple[int, ...]:
        """The smallest goes first."""


def least_recently_used(use: CachedUse) -> tuple[int, ...]:
    """LRU: the chain that was used longest ago goes first."""
    return (use.last_used,)


def least_frequently_used(use: CachedUse) -> tuple[int, ...]:
    """LFU; of equals the least recently used."""
    return (use.uses, use.last_used)


def length_aware(use: CachedUse) -> tuple[int, ...]:
    """LFU that drops blocks far behind in their prompts first (Mooncake's LengthAwareCache)."""
    return (use.uses, -use.depth_blocks, use.last_used)


EVICTION_ORDERS: dict[str, EvictionOrder] = {
    "lru": least_recently_used,
    "lfu": least_frequently_used,
    "length-aware": length_aware,
}
"""Eviction orders by the names that the simulator's option takes."""
