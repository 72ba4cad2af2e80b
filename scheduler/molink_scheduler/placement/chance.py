"""Chance that is the same every time: a linear congruential generator.

The core draws no random numbers of its own, and a placement must not depend on the moment at which
it is asked for.
"""

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Chance"]

T = TypeVar("T")

MULTIPLIER, INCREMENT, MODULUS = 6364136223846793005, 1442695040888963407, 2**64
"""Knuth's, for 64 bits; the low bits are poor and not used."""


class Chance:
    """Draws numbers."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed % MODULUS

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1; `limit` is at least 1."""
        self._state = (self._state * MULTIPLIER + INCREMENT) % MODULUS
        return (self._state >> 32) * limit >> 32

    def of(self, values: Sequence[T]) -> T:
        """One of them."""
        return values[self.below(len(values))]

    def two_of(self, limit: int) -> tuple[int, int]:
        """Two different numbers from 0 to limit - 1; `limit` is at least 2."""
        first, second = self.below(limit), self.below(limit - 1)
        return first, second + (second >= first)
