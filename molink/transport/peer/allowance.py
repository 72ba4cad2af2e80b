"""How many bytes measurements may still take of a line: all together draw on what fills slowly."""

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["ALLOWANCE_BYTES", "ALLOWANCE_BYTES_PER_S", "BULK_BYTES_MAX", "Allowance"]

BULK_BYTES_MAX = 16 * 2**20
"""Of one measurement: a second of 134 Mbps; what is faster is measured in less than a second."""

ALLOWANCE_BYTES = 8 * BULK_BYTES_MAX
"""A round in which eight neighbours measure at once at full length."""

ALLOWANCE_BYTES_PER_S = 256 * 1024
"""2 Mbps on average, at worst: a home's downlink does not notice."""


@dataclass(slots=True)
class Allowance:
    """Bytes that may still come, refilled with time."""

    clock: Callable[[], float]
    left_bytes: float = ALLOWANCE_BYTES
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._filled_at = self.clock()

    def for_one(self) -> int:
        """What the next measurement may send."""
        now = self.clock()
        self.left_bytes += (now - self._filled_at) * ALLOWANCE_BYTES_PER_S
        self.left_bytes = min(self.left_bytes, ALLOWANCE_BYTES)
        self._filled_at = now
        return min(int(self.left_bytes), BULK_BYTES_MAX)

    def take(self, size_bytes: int) -> None:
        """So much has come."""
        self.left_bytes -= size_bytes
