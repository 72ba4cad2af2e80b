"""For how long has prefill stood aside for decode, and is it its turn now?

Strict priority alone would starve prefill on a link that decode fills. The paper counts: W goes up
with every decision for which both classes wait, and at N = 30 prefill gets a turn. Counting was
found not to be enough. Over home links only as many decode batches can queue as there are
micro-batches, each comes back after a whole round, and every prefill chunk sets W to 0, so that W
never nears 30; and thirty batches may be thirty kilobytes or fifteen megabytes. So two more limits
stand beside N: bytes of decode that went past, and milliseconds since the first of them did. The
first limit reached gives prefill one quantum. Time counts from the first decode that went past and
not from the last prefill chunk: otherwise a slow chunk would have earned the next one while it was
on the wire, and decode would wait for two.
"""

from dataclasses import dataclass, field

__all__ = ["HoldBackLimits", "StarvationGuard"]

DECISIONS_MAX = 30
"""The paper's N. It bounds bursts of tiny messages, which neither bytes nor time see."""

DECODE_BYTES_MAX = 512 * 2**10
"""On fast links, where pieces are 64 KB, prefill keeps about a ninth of what is sent."""

HELD_BACK_S_MAX = 0.1
"""On slow links, where pieces last 8 ms, prefill keeps about 7 % of the time, and decode loses no
more than that."""


@dataclass(frozen=True, slots=True)
class HoldBackLimits:
    """How long prefill may have to stand aside; whichever limit is reached first counts."""

    decisions_max: int = DECISIONS_MAX
    """N: the decision at which prefill has its turn; N - 1 go to decode before it."""
    decode_bytes_max: int = DECODE_BYTES_MAX
    held_back_s_max: float = HELD_BACK_S_MAX

    def __post_init__(self) -> None:
        if self.decisions_max < 2:
            raise ValueError(f"N under 2 lets decode never go first, got {self.decisions_max}")
        if self.decode_bytes_max < 1 or not self.held_back_s_max > 0:
            raise ValueError("prefill must be held back for at least a byte and a moment")


@dataclass(slots=True)
class StarvationGuard:
    """What decode has taken since prefill last moved."""

    limits: HoldBackLimits
    decisions: int = field(init=False, default=0)
    """W: decisions for which both classes waited."""
    decode_bytes: int = field(init=False, default=0)
    since: float | None = field(init=False, default=None)
    """When decode first went past prefill that waited."""

    def both_wait(self, now: float) -> None:
        """A decision is due for which both classes wait."""
        self.decisions += 1
        if self.since is None:
            self.since = now

    def decode_passed(self, size_bytes: int) -> None:
        """Decode of this size went past prefill that waits."""
        self.decode_bytes += size_bytes

    def reset(self) -> None:
        """Prefill moved, or none waits."""
        self.decisions, self.decode_bytes, self.since = 0, 0, None

    def is_over(self, now: float) -> bool:
        """True when prefill has stood aside for long enough."""
        return (
            self.decisions >= self.limits.decisions_max
            or self.decode_bytes >= self.limits.decode_bytes_max
            or (self.since is not None and now - self.since >= self.limits.held_back_s_max)
        )
