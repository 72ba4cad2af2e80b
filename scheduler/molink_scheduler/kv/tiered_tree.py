"""Directory of cached KV blocks of which some are in host memory or in a file.

A chain goes on in lower tiers: device memory first, then host memory, then the file, because only
ends go down and only beginnings come back. A node is in one tier as a whole, and is cut where its
blocks part. What is away is found like anything else, and is of use once it has been fetched. What
somebody wishes to keep goes down last, and is dropped last from the lowest tier.

Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile

from molink_scheduler.kv.prefix_tree import CachedPrefix, Node, PrefixTree
from molink_scheduler.kv.tiers import DEVICE, FILE, HOST, CacheTiers
from molink_scheduler.number_runs import cut_runs, join_runs


@dataclass(slots=True)
class TieredTree(PrefixTree):
    """Cached chains of all salts, over all tiers."""

    def lower(
        self, tier: int, below: int, blocks: int, asking: str | None = None, *, spare: bool = False
    ) -> list[range]:
        """Move so many blocks of a tier for an owner, or all that nobody holds, to a lower one:
        their numbers."""
        moved: list[range] = []
        for here, most in self._turns(tier, blocks, asking, spare):
            if (stay := self._nodes[here].blocks - most) > 0:
                self._cut(here, stay)
            moved += self._nodes[here].numbers
            self._move(here, below)
            self._merge(here)
        return moved

    def put_down(
        self, tiers: CacheTiers, tier: int, blocks: int, asking: str | None = None
    ) -> list[tuple[int, list[range]]]:
        """Let so many blocks of a tier go for an owner to the next lower one that has room. Those
        that go first are pushed further down by the others: in order, the tier and the numbers,
        DEVICE for those that are dropped. What nobody wished to keep goes first, and pushes nothing
        down that somebody did."""
        before = self.blocks_in[tier]
        moves = self._put_down(tiers, tier, blocks, asking, spare=True)
        if (left := blocks - before + self.blocks_in[tier]) > 0:
            moves += self._put_down(tiers, tier, left, asking, spare=False)
        return moves

    def _put_down(
        self, tiers: CacheTiers, tier: int, blocks: int, asking: str | None, *, spare: bool
    ) -> list[tuple[int, list[range]]]:
        moves: list[tuple[int, list[range]]] = []
        below = tiers.below(tier)
        while below is not None and blocks > 0:
            wanted = min(blocks, tiers.capacity(below))
            short = wanted - (tiers.capacity(below) - self.blocks_in[below])
            if short > 0:
                moves += self._put_down(tiers, below, short, asking, spare=spare)
            room = min(wanted, tiers.capacity(below) - self.blocks_in[below])
            moved = self.lower(tier, below, room, asking, spare=spare) if room > 0 else []
            if not moved:
                break  # All that is there is held.
            moves.append((below, moved))
            blocks -= sum(map(len, moved))
        if blocks > 0 and (dropped := self.drop(blocks, tier, asking, spare=spare)):
            moves.append((DEVICE, dropped))
        return moves

    def away(self, prefix: CachedPrefix) -> list[tuple[int, int, bool]]:
        """Runs of a prefix, just found down to the lowest tier, that are not in device memory:
        tier, blocks, and whether they are held, which means that they are being fetched."""
        runs: list[tuple[int, int, bool]] = []
        blocks: int | None = prefix.node_blocks
        for node in self._chain(prefix.node if prefix.blocks else None):
            if node.tier == DEVICE:
                break
            count = node.blocks if blocks is None else blocks
            runs.append((node.tier, count, node.holds > 0))
            blocks = None
        return runs[::-1]

    def renew(self, salt: str, tokens: bytes) -> tuple[list[range], range]:
        """Blocks of the tokens that lower tiers hold were computed again: they are in device memory
        under the numbers returned last, and no more where they were, under the first ones."""
        prefix = self.find(salt, tokens, lowest=FILE)
        old: list[range] = []
        first = self._next_number
        for here in self._away_nodes(prefix):
            node = self._nodes[here]
            old += node.numbers
            numbers = range(self._next_number, self._next_number + node.blocks)
            node.numbers, self._next_number = [numbers], numbers.stop
            self._move(here, DEVICE)
        return old, range(first, self._next_number)

    def expect(self, salt: str, tokens: bytes) -> tuple[int, range, list[range]]:
        """Blocks of the tokens behind those in device memory, one at least, come from another ring:
        the node to give to `fetched`, their numbers, and those of blocks in lower tiers whose place
        they take. Until they are there they are found like what lower tiers hold."""
        dropped: list[range] = []
        if away := self._away_nodes(self.find(salt, tokens, lowest=FILE)):
            dropped = self._drop_behind(away[0])
            dropped += self._shorten(away[0], self._nodes[away[0]].blocks)
        here, numbers = self.extend(salt, tokens)
        self._cut(here, self._nodes[here].blocks - len(numbers) or len(numbers))
        self._move(here, HOST)
        return here, numbers, dropped

    def fetched(self, here: int, blocks: int) -> list[range]:
        """The chain that was pinned with this node is in device memory now, so many blocks of what
        was away; the others are lost, and dropped with all behind them: their numbers."""
        node = self._nodes[here]
        away = self._away_nodes(CachedPrefix(node.depth_blocks, here, node.blocks))
        self.unpin(here)
        for one in away:
            count = self._nodes[one].blocks
            if blocks < count:
                present = self._cut(one, blocks) if blocks else None
                if present is not None:
                    self._move(present, DEVICE)
                return self._drop_behind(one) + self._shorten(one, count)
            self._move(one, DEVICE)
            blocks -= count
        return []

    def wish(self, here: int, wished: Iterable[tuple[int, int]]) -> None:
        """Keep first tokens of the chain that ends in a node, as far as it has them, for so many
        seconds after each use."""
        for tokens, keep_s in wished:
            blocks = tokens // self.block_tokens
            if 0 < blocks <= self._nodes[here].depth_blocks:
                self._keep(self._ending_at(here, blocks), keep_s)

    def pass_time(self, now: float) -> None:
        """Let wishes lapse whose time is over."""
        for here in self._wishes.lapse(now):
            self._enter(here)

    def numbers_in(self, tier: int) -> list[range]:
        """Numbers of all blocks of a tier, in no order."""
        nodes = self._nodes.values()
        return [run for node in nodes if node.tier == tier for run in node.numbers]

    def retained(self, stays: Callable[[int, int], bool]) -> "TieredTree":
        """Directory without what is held: blocks of which it is said, by their tiers and numbers,
        that they stay, as those of all before them do."""
        kept = TieredTree(self.order, self.block_tokens)
        kept._now, kept._next_number = self._now, self._next_number
        kept.pass_time(self._wishes.now)
        waiting = [
            (child, kept._root(group))
            for group, root in self._roots.items()
            for child in self._nodes[root].children.values()
        ]
        while waiting:
            here, parent = waiting.pop()
            node = self._nodes[here]
            stay = partial(stays, node.tier)
            if (count := len([*takewhile(stay, chain.from_iterable(node.numbers))])) > 0:
                there = kept._add_part_of(node, count, parent)
                kept._wishes.follow(there, self._wishes.of(here))
                complete = count == node.blocks
                waiting += [(child, there) for child in node.children.values() if complete]
        kept._settle_ends()
        kept._owners.follow(self._owners)
        return kept

    # -- nodes ----------------------------------------------------------------------------------

    def _add_part_of(self, node: Node, blocks: int, parent: int) -> int:
        """A node like the first blocks of another tree's."""
        above = self._nodes[parent]
        there = self._add(
            replace(
                node,
                parent=parent,
                tokens=node.tokens[: blocks * self.block_bytes],
                numbers=cut_runs(node.numbers, blocks)[0],
                blocks=blocks,
                children={},
                pins=0,
                holds=0,
                depth_blocks=above.depth_blocks + blocks,
                entry=0,
                near=0,
            )
        )
        above.children[node.tokens[: self.block_bytes]] = there
        above.near += node.tier <= above.tier
        self._owners.count(node.owner, node.tier, blocks)
        return there

    def _ending_at(self, here: int, blocks: int) -> int:
        """The node in which the first `blocks` blocks end of the chain that ends in this one."""
        while (before := self._nodes[here].depth_blocks - self._nodes[here].blocks) >= blocks:
            parent = self._nodes[here].parent
            assert parent is not None, "before the root there are no blocks"
            here = parent
        return self._cut(here, blocks - before)

    def _keep(self, here: int | None, keep_s: int) -> None:
        """Keep a node, and with it those before."""
        while here is not None:
            if self._nodes[here].parent is not None:
                self._wishes.add(here, keep_s)
                self._enter(here)
            here = self._nodes[here].parent

    def _settle_ends(self) -> None:
        """Forget roots that have no chains, and let the ends of all chains be dropped."""
        for group, root in list(self._roots.items()):
            if not self._nodes[root].children:
                del self._nodes[root], self._roots[group]
        for here in list(self._nodes):
            self._enter(here)

    def _away_nodes(self, prefix: CachedPrefix) -> list[int]:
        """The nodes of a prefix that are not in device memory, the first one first; the last is
        cut where the prefix ends."""
        found: list[int] = []
        here = self._cut(prefix.node, prefix.node_blocks) if prefix.blocks else None
        while here is not None and self._nodes[here].tier > DEVICE:
            found.append(here)
            here = self._nodes[here].parent
        return found[::-1]

    def _move(self, here: int, tier: int) -> None:
        """Have a node in another tier."""
        node, count = self._nodes[here], self._nodes[here].blocks
        assert node.parent is not None, "a root has no blocks that could be anywhere"
        parent = self._nodes[node.parent]
        self._owners.count(node.owner, tier, count)
        self._owners.count(node.owner, node.tier, -count)
        if node.holds:
            self.blocks_held += count * ((tier == DEVICE) - (node.tier == DEVICE))
        parent.near += (tier <= parent.tier) - (node.tier <= parent.tier)
        node.tier, node.entry = tier, 0
        node.near = sum(self._nodes[one].tier <= tier for one in node.children.values())
        self._enter(node.parent)
        self._enter(here)

    def _merge(self, here: int) -> None:
        """Make one node of two that have become one run: a chain that goes down stays short."""
        node = self._nodes[here]
        if len(node.children) != 1 or node.holds:
            return
        (child,) = node.children.values()
        other = self._nodes[child]
        if (other.tier, other.owner) != (node.tier, node.owner):
            return
        if self._wishes.of(child) != self._wishes.of(here):
            return
        node.tokens += other.tokens
        node.numbers = join_runs([*node.numbers, *other.numbers])
        node.blocks += other.blocks
        node.children, node.near = other.children, other.near
        node.depth_blocks, node.last_used, node.uses = (
            other.depth_blocks,
            other.last_used,
            other.uses,
        )
        del self._nodes[child]
        self._wishes.forget(child)
        for one in node.children.values():
            self._nodes[one].parent = here
        self._enter(here)
