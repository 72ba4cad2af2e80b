"""The shape of an emulated home link: `--link RATE_MBPS:ONE_WAY_MS`."""

import math
from dataclasses import dataclass

from molink.errors import UserError

__all__ = ["LinkShape"]

QUEUE_BYTES_DEFAULT = 1024 * 1024
"""What a home router buffers in front of its uplink: 80 ms at 100 Mbps, 400 ms at 20 Mbps."""


@dataclass(frozen=True, slots=True)
class LinkShape:
    """Rate, delay and queue of one directed link."""

    rate_mbps: float
    one_way_ms: float
    queue_bytes: int = QUEUE_BYTES_DEFAULT
    """Bytes that wait for the wire at most; what comes after is held back, not lost."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate_mbps) and self.rate_mbps > 0):
            raise UserError(f"A link's rate must be above 0 Mbps, got {self.rate_mbps:g}.")
        if not (math.isfinite(self.one_way_ms) and 0 <= self.one_way_ms <= 60_000):
            raise UserError(f"A link's delay must be 0 to 60000 ms, got {self.one_way_ms:g}.")

    @classmethod
    def parse(cls, text: str) -> "LinkShape":
        """`100:30` is 100 Mbps and 30 ms one way. Raises UserError for anything else."""
        rate, colon, delay = text.partition(":")
        try:
            return cls(float(rate), float(delay if colon else "missing"))
        except ValueError:
            raise UserError(
                f"--link takes RATE_MBPS:ONE_WAY_MS, for example 100:30, got {text!r}."
            ) from None

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes."""
        return self.rate_mbps * 1e6 / 8

    @property
    def one_way_s(self) -> float:
        """The delay in seconds."""
        return self.one_way_ms / 1e3
