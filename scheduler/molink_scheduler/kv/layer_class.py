"""Classes of a stage's layers by what they keep of a request: those that see a window of it have
blocks of their own.

Whole layers keep all tokens, in blocks that grow with the request (`blocks`). A layer with a window
never looks further back, so its room for a request is the same however long that gets, as for a
layer with a state: the head counts it as a slot (`ledger`). Fixed room pays for long requests and
costs short ones, so a window about as long as an ordinary conversation makes no class.

A request holds the blocks that rows to come can see. Those in front of them leave when a step is
over, and not before: the step's own first row sees them. What may be computed again decides, not
what was computed: a block leaves behind the window of `known_end`, the first token that can still
be part of a step.

A snapshot for the prefix cache is the blocks of a window at one position. They are full, so nobody
writes to them any more, and a request that begins with them shares them.

Pure.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from molink_scheduler.kv.blocks import BLOCK_TOKENS, OutOfBlocks, blocks_for

REWOUND_TOKENS_MAX = 16
"""Tokens that a request may go back without a block of its window being gone."""

CONVERSATION_TOKENS = 4_096
"""An ordinary conversation: KV that memory is kept free for with every request's states. Its room
in windows is at most half of that."""

STEP_ROWS_MAX = 512
"""Rows of a step for which there is room beside the requests': those of the widest one that stages
compute unless an operator asks for more."""


@dataclass(frozen=True, slots=True)
class LayerClass:
    """Layers of one stage that see the last `window` tokens; without layers: there are none."""

    layers: frozenset[int] = frozenset()
    window: int = 1
    """Tokens that a row sees, its own included; where layers differ, the most."""

    @classmethod
    def of(cls, windows: Mapping[int, int | None], length: int) -> "LayerClass":
        """Class of the layers whose windows pay, in a model of so many tokens at most; `windows`:
        of each layer, None where it sees all tokens."""
        paying = {index: one for index, one in windows.items() if one and pays(one, length)}
        return cls(frozenset(paying), max(paying.values(), default=1))

    @property
    def request_blocks(self) -> int:
        """Blocks of one request between steps, and in a step of few rows."""
        return room_blocks(self.window) if self.layers else 0

    def first_block(self, position: int) -> int:
        """The first block of a sequence that a row at `position`, or behind it, sees."""
        return max(0, position - self.window + 1) // BLOCK_TOKENS


def room_blocks(window: int) -> int:
    """Blocks of one request in a layer that sees the last `window` tokens."""
    return blocks_for(window + REWOUND_TOKENS_MAX) + 1


def room_tokens(window: int) -> int:
    """Tokens for which such a layer has room for each request."""
    return room_blocks(window) * BLOCK_TOKENS


def pays(window: int, length: int) -> bool:
    """Whether fixed room is less than what requests of at most `length` tokens would hold."""
    return 2 * room_tokens(window) <= min(CONVERSATION_TOKENS, length)


@dataclass(slots=True)
class _Held:
    first: int
    """Place of the first block in its sequence; those in front of it are gone."""
    blocks: list[int]


@dataclass(slots=True)
class WindowBlocks:
    """Blocks of one class of layers of one stage."""

    layers: LayerClass = field(default_factory=LayerClass)
    requests: int = 1
    """Requests and snapshots for which there is room."""
    snapshots: int = 0
    blocks_total: int = field(init=False)
    _free: list[int] = field(init=False)
    _users: "array[int]" = field(init=False)
    """Number of users of each block."""
    _held: dict[int, _Held] = field(init=False, default_factory=dict)
    _kept: dict[int, _Held] = field(init=False, default_factory=dict)
    """Blocks of each snapshot."""

    def __post_init__(self) -> None:
        places = self.requests + self.snapshots
        self.blocks_total = places * self.layers.request_blocks + self.step_blocks
        self._free = list(range(self.blocks_total - 1, -1, -1))
        self._users = array("i", bytes(4 * self.blocks_total))

    @property
    def step_blocks(self) -> int:
        """Blocks for the rows of a step, beside those of requests."""
        return blocks_for(STEP_ROWS_MAX) if self.layers.layers else 0

    @property
    def blocks_free(self) -> int:
        """Blocks that belong to nobody."""
        return len(self._free)

    def can_go_on(self, request_id: int, position: int) -> bool:
        """Whether all that a row at `position` sees is held; of a request that holds nothing, it
        is."""
        held = self._held.get(request_id)
        return held is None or held.first <= self.layers.first_block(position)

    def grow(self, request_id: int, start: int, end: int) -> None:
        """Let the request hold the tokens [start, end), and all before them that these see.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free, or some that they see
        are gone.
        """
        first = self.layers.first_block(start)
        if not self.can_go_on(request_id, start):
            raise OutOfBlocks(f"request {request_id} is to go back to token {start}: it is gone")
        if request_id in self._held:
            # No prompt goes back, and its rows want the room, as drafts do.
            self.settle(request_id, min(start, end - 2 - REWOUND_TOKENS_MAX))
        held = self._held.get(request_id) or _Held(first, [])
        missing = blocks_for(end) - held.first - len(held.blocks)
        if missing > len(self._free):
            raise OutOfBlocks(
                f"request {request_id} needs {missing} more blocks of windows, "
                f"{len(self._free)} are free"
            )
        taken = [self._free.pop() for _ in range(missing)]
        self._use(taken)
        held.blocks += taken
        self._held[request_id] = held

    def settle(self, request_id: int, known_end: int) -> None:
        """A step is over, and no token before `known_end` is computed again: give back what no
        other row sees."""
        held = self._held[request_id]
        gone = max(0, self.layers.first_block(known_end) - held.first)
        self._leave(held.blocks[:gone])
        held.first, held.blocks = held.first + gone, held.blocks[gone:]

    def table(self, request_id: int) -> "array[int]":
        """Block numbers of the request in token order, as kernels read them: in front of what it
        holds stands its first one, which no row sees there."""
        held = self._held[request_id]
        return array("i", held.blocks[:1]) * held.first + array("i", held.blocks)

    def release(self, request_id: int) -> None:
        """Give the request's blocks back; a request that holds none is fine."""
        if (held := self._held.pop(request_id, None)) is not None:
            self._leave(held.blocks)

    def keep(self, request_id: int, tokens: int, snapshot: int) -> None:
        """Let a snapshot hold what a row behind the first `tokens`, whole blocks, sees; it replaces
        the one of that number."""
        held, first = self._held[request_id], self.layers.first_block(tokens)
        assert held.first <= first and not tokens % BLOCK_TOKENS, (
            "a window is kept while it is held"
        )
        blocks = held.blocks[first - held.first : tokens // BLOCK_TOKENS - held.first]
        self._use(blocks)
        if (before := self._kept.pop(snapshot, None)) is not None:
            self._leave(before.blocks)
        self._kept[snapshot] = _Held(first, blocks)

    def begin(self, request_id: int, snapshot: int) -> None:
        """Let a request that holds nothing begin behind a snapshot. Raises KeyError where there is
        none."""
        kept = self._kept[snapshot]
        self._use(kept.blocks)
        self._held[request_id] = _Held(kept.first, list(kept.blocks))

    def blocks_of(self, request_id: int) -> frozenset[int]:
        """Blocks that a request holds."""
        held = self._held.get(request_id)
        return frozenset(() if held is None else held.blocks)

    def free_among(self, blocks: Iterable[int]) -> list[int]:
        """Those of some blocks that belong to nobody."""
        return [block for block in blocks if not self._users[block]]

    def _use(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._users[block] += 1

    def _leave(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                self._free.append(block)
