"""Radix tree of cached KV blocks: which beginnings of prompts are held, and in which blocks.

A cached block is worth something only behind all blocks before it, so what is known are chains: a
tree of whole blocks for each salt, as in SGLang. Requests that begin alike share nodes; where
they part, a node is split. A prompt is looked up by comparing memory, a few comparisons for
thousands of tokens, and two prompts can never be taken for each other. Keys that are hashed block
by block (vLLM, Mooncake) were rejected: 125 hashes of a prompt of 2,000 tokens take 70 us, this
takes a few, and a table of a million hashes is larger than the tokens are.

Every cached block has a number, which the stages of a ring know it by. What is cached at once is
numbered in order, so numbers are kept, and told, as runs. Who uses a chain pins its last node, and
with it all before. Room is made at the ends of chains that nobody pins, in an order of `eviction`,
of the owner whose turn it is (`owners`), what somebody wished to keep (`wishes`) last. Nodes are
dropped lazily from a heap: an entry counts only if its node was not used since.

Ends may also go to a lower tier of memory: see `tiered_tree`.

Nodes name each other by ids, so that the whole is flat and can be logged.

Pure; tokens are bytes, as requests have them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.eviction import EVICTION_ORDERS
from molink_scheduler.kv.owners import OWNER_MARK, Owners, split_salt
from molink_scheduler.kv.tiers import DEVICE
from molink_scheduler.kv.wishes import Wishes
from molink_scheduler.number_runs import cut_runs, join_runs
from molink_scheduler.token_ids import TOKEN_BYTES, common_blocks

STALE_ENTRIES_MAX = 1024
"""New heap entries beside twice one for each node, before those that do not count are swept out."""


@dataclass(slots=True)
class Node:
    """Run of cached blocks that every chain through it shares."""

    parent: int | None
    """Node before this one; None: it is the root of a group, and has no blocks."""
    group: str
    owner: str = ""
    """Owner whose request had the blocks computed first."""
    tokens: bytes = b""
    numbers: list[range] = field(default_factory=list)
    """Numbers of the blocks in order, in runs."""
    blocks: int = 0
    children: dict[bytes, int] = field(default_factory=dict)
    """Nodes that follow, by their first block."""
    pins: int = 0
    """Requests that use the chain that ends here."""
    holds: int = 0
    """Pins of its own and children that are held: while there are any, nothing here is dropped."""
    depth_blocks: int = 0
    """Blocks from the root to its last."""
    last_used: int = 0
    uses: int = 1
    entry: int = 0
    """The newest of its entries in a heap."""
    tier: int = DEVICE
    """Tier that holds all its blocks."""
    near: int = 0
    """Children that are not below it: while there are any, it does not go down."""


class CachedPrefix(NamedTuple):
    """Beginning of a prompt that is cached."""

    blocks: int = 0
    node: int = -1
    """Node in which the prefix ends; -1: nothing is cached."""
    node_blocks: int = 0
    """Blocks of that node that belong to the prefix."""


@dataclass(slots=True)
class PrefixTree:
    """Cached chains of all salts, each a group that shares them and an owner (`split_salt`)."""

    order: str = "lru"
    """Name in `EVICTION_ORDERS`."""
    block_tokens: int = BLOCK_TOKENS
    blocks_held: int = field(init=False, default=0)
    """Blocks in device memory that may not be dropped."""
    _nodes: dict[int, Node] = field(init=False, default_factory=dict)
    _roots: dict[str, int] = field(init=False, default_factory=dict)
    _owners: Owners = field(init=False, default_factory=Owners)
    _wishes: Wishes = field(init=False, default_factory=Wishes)
    _now: int = field(init=False, default=0)
    _next_node: int = field(init=False, default=0)
    _next_number: int = field(init=False, default=0)

    @property
    def blocks_in(self) -> list[int]:
        """Number of cached blocks in each tier."""
        return self._owners.blocks_in

    @property
    def blocks(self) -> int:
        """Number of cached blocks in device memory."""
        return self.blocks_in[DEVICE]

    @property
    def blocks_droppable(self) -> int:
        """Blocks of device memory that `drop` could drop."""
        return self.blocks - self.blocks_held

    @property
    def block_bytes(self) -> int:
        """Bytes of the tokens of a block."""
        return self.block_tokens * TOKEN_BYTES

    def find(
        self, salt: str, tokens: bytes, blocks_max: int | None = None, lowest: int = DEVICE
    ) -> CachedPrefix:
        """The longest cached prefix of the tokens, of whole blocks, at most `blocks_max` of them,
        down to the tier `lowest`; looking changes nothing."""
        size = self.block_bytes
        wanted = len(tokens) // size if blocks_max is None else min(blocks_max, len(tokens) // size)
        here, found, in_node = self._roots.get(salt.partition(OWNER_MARK)[0], -1), 0, 0
        while found < wanted and here >= 0:
            start = found * size
            child = self._nodes[here].children.get(tokens[start : start + size])
            if child is None or self._nodes[child].tier > lowest:
                break
            run = self._nodes[child].tokens
            in_node = common_blocks(run, tokens[start : wanted * size], size)
            here, found = child, found + in_node
            if in_node * size < len(run):
                break
        return CachedPrefix(found, here, in_node) if found else CachedPrefix()

    def numbers(self, prefix: CachedPrefix) -> list[range]:
        """Numbers of the blocks of a prefix, just found, the first one first."""
        if not prefix.blocks:
            return []
        last, *before = self._chain(prefix.node)
        parts = [*(node.numbers for node in reversed(before)), last.numbers]
        return cut_runs(join_runs(chain.from_iterable(parts)), prefix.blocks)[0]

    def unheld_blocks(self, prefix: CachedPrefix) -> int:
        """Blocks of a prefix, just found, that could be dropped."""
        unheld, here = 0, prefix.node if prefix.blocks else None
        blocks: int | None = prefix.node_blocks
        while here is not None and not self._nodes[here].holds:
            node = self._nodes[here]
            unheld += node.blocks if blocks is None else blocks
            here, blocks = node.parent, None
        return unheld

    def pin(self, prefix: CachedPrefix) -> int:
        """Hold a prefix, just found and not empty, and count it as used; give the node that is
        returned to `unpin`."""
        here = self._cut(prefix.node, prefix.node_blocks)
        self._use(here, 1)
        self._nodes[here].pins += 1
        self._hold(here)
        return here

    def unpin(self, here: int) -> None:
        """Give a prefix back: it stays cached until room is wanted."""
        node = self._nodes[here]
        assert node.pins > 0, "a prefix is given back once for each time that it was pinned"
        node.pins -= 1
        self._let_go(here)

    def extend(self, salt: str, tokens: bytes, held: int | None = None) -> tuple[int, range]:
        """Cache all whole blocks of the tokens, one at least, and pin them: the node that is
        returned to `unpin`, and the numbers of those at their end that were not cached before. What
        the caller `held` of them is unpinned."""
        total = len(tokens) // self.block_bytes
        found, here, in_node = self.find(salt, tokens)
        group, owner = split_salt(salt)
        here = self._cut(here, in_node) if found else self._root(group)
        numbers = range(self._next_number, self._next_number + total - found)
        if numbers:
            self._next_number = numbers.stop
            behind = tokens[found * self.block_bytes : total * self.block_bytes]
            here = self._append(here, owner, behind, numbers, held)
        self._use(here, 0)
        self._nodes[here].pins += 1
        self._hold(here)
        if held is not None:
            self.unpin(held)
        return here, numbers

    def drop(
        self, blocks: int, tier: int = DEVICE, asking: str | None = None, *, spare: bool = False
    ) -> list[range]:
        """Drop so many blocks of a tier for an owner, or all that nobody holds, and what is behind
        them in lower ones: the numbers of all."""
        dropped: list[range] = []
        for here, most in self._turns(tier, blocks, asking, spare):
            if self._nodes[here].children:
                dropped += self._drop_behind(here)
            dropped += self._shorten(here, most)
        return dropped

    def hide(self) -> None:
        """Let nobody find cached blocks; a request that holds some goes on."""
        self._roots.clear()

    def drop_chain(self, here: int) -> list[range]:
        """Drop the chain that ends in a node, from there on as far as nobody else needs it: the
        numbers of its blocks."""
        dropped: list[range] = []
        node: Node | None = self._nodes[here]
        while node is not None and node.parent is not None and not (node.holds or node.children):
            dropped += self._shorten(here, node.blocks)
            here = node.parent
            node = self._nodes.get(here)
        return dropped

    # -- nodes ----------------------------------------------------------------------------------

    def _root(self, group: str) -> int:
        if group not in self._roots:
            self._roots[group] = self._add(Node(None, group))
        return self._roots[group]

    def _add(self, node: Node) -> int:
        here, self._next_node = self._next_node, self._next_node + 1
        self._nodes[here] = node
        return here

    def _cut(self, here: int, blocks: int) -> int:
        """The node of the first `blocks` blocks of a node, which keeps the others."""
        node = self._nodes[here]
        if blocks == node.blocks or node.parent is None:
            return here
        size = blocks * self.block_bytes
        first, others = cut_runs(node.numbers, blocks)
        upper = replace(
            node,
            tokens=node.tokens[:size],
            numbers=first,
            blocks=blocks,
            children={node.tokens[size : size + self.block_bytes]: here},
            pins=0,
            holds=1 if node.holds else 0,
            depth_blocks=node.depth_blocks - node.blocks + blocks,
            near=1,
        )
        there = self._add(upper)
        self._nodes[node.parent].children[node.tokens[: self.block_bytes]] = there
        node.parent, node.tokens, node.numbers = there, node.tokens[size:], others
        node.blocks -= blocks
        self._wishes.follow(there, self._wishes.of(here))
        return there

    def _append(
        self, here: int, owner: str, tokens: bytes, numbers: range, held: int | None
    ) -> int:
        """Blocks behind a node: in the node itself where its chain ends and nobody but who `held`
        it uses it or did, else in a new one."""
        node, count = self._nodes[here], len(numbers)
        self._owners.count(owner, DEVICE, count)
        depth_blocks = node.depth_blocks + count
        others = node.uses - 1 + node.pins - (here == held) + (node.owner != owner)
        if node.children or node.parent is None or others or here in self._wishes:
            child = Node(
                here, node.group, owner, tokens, [numbers], count, depth_blocks=depth_blocks
            )
            node.near += 1
            there = node.children[tokens[: self.block_bytes]] = self._add(child)
            return there
        node.tokens += tokens
        node.numbers = join_runs([*node.numbers, numbers])
        node.blocks += count
        node.depth_blocks = depth_blocks
        if node.holds:
            self.blocks_held += count
        return here

    def _shorten(self, here: int, blocks: int) -> list[range]:
        """Drop at most so many of a node's last blocks, of which it has some; their numbers."""
        node = self._nodes[here]
        if blocks >= node.blocks:
            self._remove(here, node)
            return node.numbers
        kept = node.blocks - blocks
        node.numbers, dropped = cut_runs(node.numbers, kept)
        node.tokens, node.blocks = node.tokens[: kept * self.block_bytes], kept
        node.depth_blocks -= blocks
        self._owners.count(node.owner, node.tier, -blocks)
        self._enter(here)
        return dropped

    def _drop_behind(self, here: int) -> list[range]:
        """Forget all nodes behind one: their numbers."""
        dropped: list[range] = []
        waiting = [*self._nodes[here].children.values()]
        while waiting:
            gone = waiting.pop()
            node = self._nodes.pop(gone)
            assert not node.holds, "what is behind an end is held with it"
            self._wishes.forget(gone)
            waiting += node.children.values()
            dropped += node.numbers
            self._owners.count(node.owner, node.tier, -node.blocks)
        self._nodes[here].children.clear()
        self._nodes[here].near = 0
        return dropped

    def _remove(self, here: int, node: Node) -> None:
        """Forget an end, and a root that has no chains left."""
        assert node.parent is not None, "a root has no blocks that could be dropped"
        above, parent = node.parent, self._nodes[node.parent]
        self._owners.count(node.owner, node.tier, -node.blocks)
        parent.near -= node.tier <= parent.tier
        self._wishes.forget(here)
        del self._nodes[here], parent.children[node.tokens[: self.block_bytes]]
        if parent.parent is not None:
            self._enter(above)
        elif not parent.children:
            del self._nodes[above]
            if self._roots.get(node.group) == above:
                del self._roots[node.group]

    # -- use ------------------------------------------------------------------------------------

    def _chain(self, here: int | None) -> Iterator[Node]:
        """A node and those before it, up to the root."""
        while here is not None:
            node = self._nodes[here]
            yield node
            here = node.parent

    def _use(self, here: int, uses: int) -> None:
        """The chain that ends here is used now, and by so many more requests."""
        self._now += 1
        self._owners.used(self._nodes[here].owner, self._next_number)
        above: int | None = here
        while above is not None:
            node = self._nodes[above]
            node.last_used = self._now
            node.uses += uses
            self._wishes.used(above)
            above = node.parent

    def _hold(self, here: int | None) -> None:
        """Add one reason to keep a node, and with it those before."""
        while here is not None:
            node = self._nodes[here]
            node.holds += 1
            if node.holds > 1:
                return
            if node.tier == DEVICE:
                self.blocks_held += node.blocks
            here = node.parent

    def _let_go(self, here: int | None) -> None:
        while here is not None:
            node = self._nodes[here]
            node.holds -= 1
            if node.holds:
                return
            if node.tier == DEVICE:
                self.blocks_held -= node.blocks
            self._enter(here)
            here = node.parent

    def _enter(self, here: int) -> None:
        """Let a node be dropped when its turn comes, if its chain ends with it and nobody holds
        it."""
        node = self._nodes[here]
        if node.holds or node.near or node.parent is None:
            return
        rank = (here in self._wishes, *EVICTION_ORDERS[self.order](node))
        node.entry = self._owners.enter(node.owner, node.tier, rank, here)
        if self._owners.unswept > 2 * len(self._nodes) + STALE_ENTRIES_MAX:
            self._owners.sweep(self._counts)

    def _turns(
        self, tier: int, blocks: int, asking: str | None, spare: bool
    ) -> Iterator[tuple[int, int]]:
        cached, counts = self._next_number, self._counts
        return self._owners.turns(tier, blocks, asking, cached, counts, spare=spare)

    def _counts(self, entry: int, here: int) -> bool:
        """Whether an entry of a heap still stands for an end that may go."""
        node = self._nodes.get(here)
        return node is not None and node.entry == entry and not node.near and not node.holds
