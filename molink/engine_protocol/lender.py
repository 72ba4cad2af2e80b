"""The seam between an engine and a lender: a process of the same PC that holds KV of blocks which
the engine's device has no room for, and attends where they lie.

A lent block is full and lies before the rows that a step computes, so its keys are never masked but
by a window. A place is a block's number there, from 0 on.

Shapes: S spans, R rows of all spans, H query heads, A head size of keys, V of values, B blocks, W
bytes of a packed block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from molink.engine_protocol.values import BlockBytes
from molink.wire.elements import Elements, Floats


class LentLayer(NamedTuple):
    """Shape of one layer's keys and values."""

    layer: int
    kv_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class LentKv:
    """What a lender has to know of the KV that it is to hold."""

    layers: tuple[LentLayer, ...]
    dtype: str
    """Format of query rows, and of keys and values where they are not int8."""
    kv_dtype: str
    """"auto": keys and values are numbers of `dtype`; "int8": codes with scales."""


class LentSpan(NamedTuple):
    """Neighbouring rows of one request, and the lent keys that they see."""

    rows: int
    start: int
    """Position of the first row, counted from the first of the keys."""
    places: Sequence[int]
    """Places of the keys' blocks, all of them full."""


class Lender(Protocol):
    """A lender, for one thread. Asked when it is gone, late or wrong it raises LenderLostError."""

    @property
    def is_lost(self) -> bool:
        """Whether it has been given up, or its process has gone; for a time between two steps."""

    def hold(self, kv: LentKv, places: int) -> None:
        """Be ready for so many blocks; what was held before is gone."""

    def put(self, places: Sequence[int], packed_BW: BlockBytes) -> None:
        """Hold packed blocks, one in each of these places."""

    def drop(self, places: Sequence[int]) -> None:
        """Hold these no more: nobody asks for them until others are put there."""

    def keep(self, places: int, moves: Sequence[tuple[int, int]]) -> None:
        """Hold no more than the first places from now on; blocks beyond them move there, from one
        place to another, or are nobody's. With none it ends."""

    def plan(self, spans: tuple[LentSpan, ...]) -> None:
        """What is asked from now on is asked for these spans, whose rows lie end to end. The very
        plan of the last call is told once."""

    def ask(
        self,
        layer: int,
        q_RHA: Elements,
        scale: float,
        softcap: float | None,
        window: int | None,
    ) -> None:
        """Ask for the attention of the plan's rows to its keys; one answer is owed at a time."""

    def answer(self) -> tuple[Elements, Floats]:
        """What was asked for last: attention [R, H, V] without sinks, and the natural logarithm of
        the sum of the exponentials of each row's scores [R, H], -inf where it sees no key. Valid
        until the next answer."""

    def take(self, layer: int, places: Sequence[int]) -> BlockBytes:
        """Keys and values of one layer in these places, [B, bytes of one block in it], for a span
        of so many rows that it reads them sooner itself."""
