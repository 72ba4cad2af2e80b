"""Values that several parts of a link share: limits of a rate and of a chunk, and what is known of
a link, of each chunk under way on it, and of its state."""

import math
from dataclasses import dataclass
from typing import NamedTuple

RATE_MIN_BYTES_PER_S = 125_000.0
"""1 Mbps. The slowest link whose chunks we believe to be slow on the wire; below it their delay
counts as queueing, or a starved sender would take its rivals' queue for its own slowness."""

RATE_FLOOR_BYTES_PER_S = 12_500.0
"""0.1 Mbps: believing less, a link that stood still for a while would take minutes to come back."""

RATE_MAX_BYTES_PER_S = 1.25e9
"""10 Gbps: no peer's acknowledgements, however early, make us believe more."""

CHUNK_S = 0.008
"""A chunk in time on the network: what a decode step may have to wait for. Chunks of this duration
follow a link that goes from 20 to 5 Mbps and back; with chunks of fixed size the rate estimate
stuck at 9 to 13 Mbps."""

CHUNK_BYTES_MIN = 4 * 1024
"""Below it the header and the acknowledgement (about 200 bytes) are over 5 % of what is sent, and
wake-ups cost more than the order gains."""

CHUNK_BYTES_MAX = 64 * 1024
"""Beyond it nothing is gained: 64 KB already cost 0.3 % in headers, 256 KB were 5 % worse, and
copies leave the processor's cache."""


def chunk_bytes_at(rate_bytes_per_s: float) -> int:
    """Size of a chunk at this rate."""
    return int(min(max(CHUNK_S * rate_bytes_per_s, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class LinkMemory:
    """What was last known of the link to a peer."""

    rate_bytes_per_s: float
    rtt_s: float

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate_bytes_per_s), ("round trip", self.rtt_s)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"a link's {name} must be above 0, got {value}")


CAUTIOUS = LinkMemory(rate_bytes_per_s=1e6, rtt_s=0.1)
"""Memory of the link to a peer never met: 8 Mbps, a slow home uplink. Only the size of the first
chunks hangs on it, what may be in flight starts from less."""


class Departure(NamedTuple):
    """What must be known of a sent chunk when its acknowledgement comes."""

    size_bytes: int
    sent_at: float
    in_flight_bytes: int
    """Our bytes in flight at that moment, the chunk included."""
    delivered_bytes: int
    """Bytes acknowledged in total at that moment."""
    delivered_at: float
    """When the newest of the acknowledged bytes was acknowledged."""
    delivered_sent_at: float
    """When the newest acknowledged chunk had left: bytes are never counted as coming back faster
    than they left."""
    rate_bytes_per_s: float
    """Believed at that moment: against it, not against its neighbours, a chunk came back soon."""
    app_limited: bool
    """Whether the sender had paused, so that the sample may be too low."""


class Repeat(NamedTuple):
    """A chunk that must leave once more, on another connection."""

    sequence: int
    size_bytes: int
    """Size of the chunk as it was sent, its header included."""
    urgent: bool


@dataclass(frozen=True, slots=True)
class LinkReport:
    """State of one outgoing link, as its stage reports it and `GET /cluster` shows it."""

    name: str
    messages_sent: int
    """Since the start."""
    bytes_sent: int
    decode_waiting: int
    """Decode transfers of which something has not left."""
    prefill_waiting: int
    decode_queued_bytes: int
    """Bytes of decode transfers that have not left."""
    prefill_queued_bytes: int
    chunk_bytes: int
    rate_mbps: float
    rtt_ms: float
    """Without queueing and without the chunk's own time."""
    queueing_delay_ms: float
    in_flight_bytes: int
    foreign_upload: bool
    acks_refused: int
