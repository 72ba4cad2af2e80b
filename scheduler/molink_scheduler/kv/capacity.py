"""Capacity of a ring, which changes while it serves: what stages offer, and what the head counts.

A stage has places for KV blocks: its device's memory, and what others lend it. It offers a number
of them to its ring, and the head counts with the least that any stage offers. One rule keeps every
stage within its places. *Raised*: a stage has the places before it offers them. *Lowered*: the head
counts less first, preempts whom it must, and says so in the stream of releases; a stage gives
places back only when that word has come, and has heard of its last offer. A word may have been sent
before that offer came to the head, so each stage numbers its offers.

A stage with a lender has room of its own besides, where all that is written lies: a quarter of it
is for the rows of a step, a quarter for cached blocks on their way in, and a half holds three
blocks of each request, so it never lacks a block where it writes.

Rejected: a word without numbers. Where one stage lowers and raises its offer while another one
lowers, a stage that gives back at the first word that it gets holds less than the head counts with.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

STAGES_MAX = 512
"""Stages that one word names: each holds a layer at least, and no model has more."""

BLOCKS_HERE_MIN = 16
"""Fewest blocks of its own of a stage that has a lender: two requests, and steps of 64 rows."""

PASSING_SHARE = 4
"""Part of its own memory that is for the rows of a step, and for cached blocks on their way in."""

REQUEST_BLOCKS = 3
"""Blocks of each request in the other half: the last two, which never go, and one that a step
needs which interrupts another."""


@dataclass(frozen=True, slots=True)
class RingCapacity:
    """Blocks with which a head counts, and the offers that it has heard of."""

    blocks: int
    heard: tuple[int, ...] = ()
    """Number of the last offer of the stage that is told this, then of each stage behind it."""

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError(f"a ring counts with one KV block at least, got {self.blocks}")
        if len(self.heard) > STAGES_MAX or any(number < 0 for number in self.heard):
            raise ValueError(f"a ring has at most {STAGES_MAX} stages, which number their offers")

    @property
    def for_next(self) -> "RingCapacity":
        """What the next stage is told."""
        return RingCapacity(self.blocks, self.heard[1:])


class Offer(NamedTuple):
    """Blocks that a stage offers to its ring."""

    number: int
    """Number of the offer among those of its stage; 0: all that it has loaded."""
    blocks: int


def least_offered(offers: Iterable[Offer]) -> RingCapacity:
    """What the head of a ring counts with, by the last offer of each stage, the head's first."""
    heard = tuple(offers)
    return RingCapacity(min(one.blocks for one in heard), tuple(one.number for one in heard))


@dataclass(slots=True)
class StageRoom:
    """Blocks that one stage has places for, and those that it offers to its ring."""

    blocks: int
    offered: int = field(init=False)
    """Blocks of the last offer; fewer than it has while it waits for the head's word."""
    number: int = field(init=False, default=0)
    """Number of the last offer, which rises as long as the stage's process lives; 0: there was
    none, and it offers all that it has loaded."""

    def __post_init__(self) -> None:
        self.offered = self.blocks

    def offer(self, blocks: int) -> None:
        """Offer so many from now on. Places for more are there already; others are given back once
        the head has heard of it."""
        self.number, self.offered = self.number + 1, blocks
        self.blocks = max(self.blocks, blocks)

    def begin(self, blocks: int) -> None:
        """Have so many and offer them, because other layers are loaded now."""
        self.number, self.offered, self.blocks = self.number + 1, blocks, blocks

    def counted(self, capacity: RingCapacity) -> None:
        """The head counts with a capacity, from here on in the stream of its releases."""
        if capacity.heard[:1] == (self.number,):
            self.blocks = self.offered


def requests_beside_lender(blocks_here: int) -> int:
    """Requests that may hold blocks at a time, of a stage with so many blocks of its own."""
    return max(1, blocks_here // (2 * REQUEST_BLOCKS))
