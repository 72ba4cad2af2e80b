"""Share of a prompt's blocks that is cached already, by room and by order of eviction.

One cache for all requests, in their order, without time: what remains is what the order of eviction
is worth. Two ways to count stand beside each other: the prefix tree that a ring runs, and, for LRU,
a list of single blocks that knows nothing of chains, in which the block used longest ago goes
first. Of one prompt's blocks the last counts as used first, so that a chain loses its end.
"""

from collections import OrderedDict
from collections.abc import Sequence

from molink_scheduler.kv.prefix_tree import PrefixTree
from molink_scheduler.token_ids import TOKEN_BYTES
from molink_sim.cache.trace import CacheRequest

HitRate = float
"""Share of all blocks asked for that were cached."""


def hit_rate(
    requests: Sequence[CacheRequest], capacity_blocks: int | None, order: str = "lru"
) -> HitRate:
    """Hit rate of the prefix tree, with room for so many blocks, or for all.

    A prompt with more blocks than there is room for has its first ones cached.
    """
    tree, hits = PrefixTree(order, block_tokens=1), 0
    for request in requests:
        hits += _take(tree, request.blocks, capacity_blocks)
    return hits / sum(one.block_count for one in requests)


def _take(tree: PrefixTree, blocks: bytes, capacity_blocks: int | None) -> int:
    """Cache a prompt's blocks; how many were cached before."""
    wanted = blocks if capacity_blocks is None else blocks[: capacity_blocks * TOKEN_BYTES]
    prefix = tree.find("", wanted)
    pinned = tree.pin(prefix) if prefix.blocks else None
    if capacity_blocks is not None:
        missing = len(wanted) // TOKEN_BYTES - prefix.blocks
        tree.drop(max(0, tree.blocks + missing - capacity_blocks))
    if wanted:
        tree.unpin(tree.extend("", wanted, pinned)[0])
    return prefix.blocks


def brute_force_lru(requests: Sequence[CacheRequest], capacity_blocks: int) -> HitRate:
    """Hit rate of a list of single blocks, least recently used first."""
    cached: OrderedDict[bytes, None] = OrderedDict()
    hits = total = 0
    for request in requests:
        blocks = _split(request.blocks)
        total += len(blocks)
        hits += next((n for n, block in enumerate(blocks) if block not in cached), len(blocks))
        for block in reversed(blocks[:capacity_blocks]):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity_blocks:
            cached.popitem(last=False)
    return hits / total


def _split(blocks: bytes) -> list[bytes]:
    return [blocks[start : start + TOKEN_BYTES] for start in range(0, len(blocks), TOKEN_BYTES)]
