"""Copy of a ring's directory of cached prefixes, kept by whoever sends it requests.

A ring's own directory is at its head, in another process, and changes with every answer; asking it
for each request would cost a round trip to every ring. But what it caches is what it was sent and
what it answered, and what it drops is what was used least recently and nobody wished to keep. So
the sender follows that in a tree of its own. A prompt counts as cached from when it is sent: who
comes next with the same beginning waits for it there, and is not computed elsewhere.

Where the ring says with its first token that less was cached than thought, it holds less than this
copy: as much as was missing is dropped here too, from the least recently used end. What a ring
holds beyond this copy is found out the same way, because its prompt is entered.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiered_tree import TieredTree

MIRROR_BLOCKS_MAX = 2**18
"""4 million tokens of one ring, more than home PCs hold of any model; 20 MB."""


@dataclass(slots=True)
class PrefixMirror:
    """Copy of one ring's directory, as far as its sender can know it."""

    blocks_max: int
    """Blocks that the ring can hold; at most MIRROR_BLOCKS_MAX are followed."""
    tree: TieredTree = field(init=False, default_factory=TieredTree)

    @classmethod
    def of_ring(cls, cache_tokens: int) -> "PrefixMirror":
        """Mirror of a ring that has room for so many cached tokens, wherever they are."""
        return cls(min(MIRROR_BLOCKS_MAX, cache_tokens // BLOCK_TOKENS))

    def cached_tokens(self, salt: str, packed: bytes) -> int:
        """Cached tokens of a prompt that `token_bytes` packed; its last token never counts."""
        tokens = len(packed) // self.tree.block_bytes * BLOCK_TOKENS
        is_whole = len(packed) % self.tree.block_bytes == 0
        blocks_max = tokens // BLOCK_TOKENS - (1 if is_whole and tokens else 0)
        return self.tree.find(salt, packed, blocks_max).blocks * BLOCK_TOKENS

    def computes(
        self, salt: str, packed: bytes, wishes: Iterable[tuple[int, int]] = (), now: float = 0.0
    ) -> None:
        """The ring computes these tokens, or has, and has used what it held of them; `wishes`: how
        many of the first are to stay, and for how many seconds."""
        self.tree.pass_time(now)
        if len(packed) >= self.tree.block_bytes:
            node, _ = self.tree.extend(salt, packed)
            self.tree.wish(node, wishes)
            self.tree.unpin(node)
        self.tree.drop(max(0, self.tree.blocks - self.blocks_max))

    def missed(self, tokens: int) -> None:
        """The ring had so many tokens less of a prompt than was thought."""
        self.tree.drop(min(self.tree.blocks, tokens // BLOCK_TOKENS))

    def clear(self) -> None:
        """The ring holds nothing."""
        self.tree = TieredTree()
