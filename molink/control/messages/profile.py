"""What a node measures and lends, and the order to measure.

Numbers that a node says of itself are bounded here by what no PC exceeds; whether they are true,
its neighbours and its own stage's steps tell.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from molink.control.messages.base import (
    Address,
    Bytes,
    Key,
    Mbps,
    Message,
    Milliseconds,
    NodeId,
    Seconds,
)

__all__ = [
    "Device",
    "PathMeasured",
    "PathReport",
    "PeerAddress",
    "ProbeOrder",
    "Profile",
    "RateSeen",
    "RatesSeen",
    "StepCost",
]


class Device(Message):
    """What would hold a stage."""

    kind: Literal["cpu", "cuda"]
    index: Annotated[int, Field(ge=0, le=63)] = 0
    name: Annotated[str, Field(max_length=100)]
    memory_bytes: Bytes
    """Of the device."""
    free_bytes: Bytes
    """That its owner lends of it now: the least of what is free and of the cap."""
    cap_bytes: Bytes | None = None
    """The owner's; what holds a stage today must fit into it, too."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    element_bytes: Literal[2, 4] = 2
    """Of a weight or a key in the number format that this device computes in by itself."""


class StepCost(Message):
    """Measured times of one decoder layer of the cluster's model: t(rows) = fixed + rows x row."""

    model: Annotated[str, Field(max_length=300)]
    decode_fixed_s: Seconds
    decode_row_s: Seconds
    prefill_row_s: Seconds
    head_row_s: Seconds = 0.0
    """Output matrix and sampling of one row, on the tail only."""


class Profile(Message):
    """The PC and what is lent of it."""

    devices: Annotated[tuple[Device, ...], Field(max_length=16)]
    cpu_threads: Annotated[int, Field(ge=1, le=4096)]
    memory_bytes: Bytes
    disk_free_bytes: Bytes
    upload_mbps: Mbps
    """Measured to the coordinator, or the owner's cap if that is less; 0: unknown."""
    download_mbps: Mbps
    """Measured from the coordinator; 0: unknown."""
    upload_cap_mbps: Mbps | None = None
    coordinator_rtt_ms: Milliseconds | None = None
    nat: Annotated[str, Field(max_length=60)] = "unknown"
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)] = ()
    """Where its peer service may be reached directly, best first."""
    direct: bool = True
    """Whether it lets anybody connect at all; without it every link that leads here is relayed."""
    clock_offset_s: float = 0.0
    steps: StepCost | None = None
    """None until it has measured the cluster's model."""


class PeerAddress(Message):
    """Somebody to measure."""

    node_id: NodeId
    public_key: Key
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)]
    token: Annotated[str, Field(max_length=64)] = ""
    """Lets this node measure that one (`transport.peer.protocol.probe_token`)."""


class ProbeOrder(Message):
    """Measure the way to these; answers come as a PathReport."""

    round: int
    """Counts up: a node measures once for each."""
    model: Annotated[str, Field(max_length=300)]
    """Of which a layer's step times are wanted."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The model's config.json: all that timing a layer of random weights needs."""
    peers: Annotated[tuple[PeerAddress, ...], Field(max_length=64)]
    coordinator_token: Annotated[str, Field(max_length=64)] = ""
    """Lets it measure the way to the coordinator, through the coordinator's relay; empty: no."""


class PathMeasured(Message):
    """The way from this node to another."""

    to: NodeId
    path: Literal["direct", "relay", "none"]
    address: Annotated[str, Field(max_length=300)] = ""
    rtt_ms: Milliseconds
    rate_mbps: Mbps
    """What this node can send there; 0: not measured."""


class PathReport(Message):
    """All that a node has measured in a round."""

    round: int
    paths: Annotated[tuple[PathMeasured, ...], Field(max_length=64)]


class RateSeen(Message):
    """What a neighbour has sent here while it measured the way."""

    sender: NodeId
    rate_mbps: Mbps


class RatesSeen(Message):
    """How fast neighbours' bytes came, by this node's own count: what they say of themselves is
    held against it."""

    rates: Annotated[tuple[RateSeen, ...], Field(max_length=64)]
