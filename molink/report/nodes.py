"""A node as `GET /cluster` tells of it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory of a node's device."""

    lent_bytes: int
    """Bytes that its owner lends now."""
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """How far KV that is held for another node is behind."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Times of one layer of the model, as a node has measured them alone."""

    model: str
    decode_fixed_s: float | None
    """Seconds of a decode step without rows; None: not measured."""
    decode_row_s: float
    prefill_row_s: float
    head_row_s: float
    """Seconds of the output matrix and of sampling, of one row."""

    @property
    def layer_step_s(self) -> float | None:
        """Seconds of one row through one layer."""
        return None if self.decode_fixed_s is None else self.decode_fixed_s + self.decode_row_s


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What a node has measured of its PC when it joined."""

    cpu_threads: int
    upload_mbps: float | None
    """Upload to the coordinator, or the owner's cap if that is less; 0: unknown."""
    download_mbps: float | None
    """Download from the coordinator; 0: unknown."""
    upload_cap_mbps: float | None
    """The owner's cap; None: there is none."""
    coordinator_rtt_ms: float | None
    nat: str
    """Kind of its network address translation."""
    clock_offset_s: float
    steps: MeasuredSteps | None
    """None until it has measured the model."""

    @property
    def coordinator_rtt_s(self) -> float | None:
        """Round trip to the coordinator."""
        return None if self.coordinator_rtt_ms is None else self.coordinator_rtt_ms / 1000


@dataclass(frozen=True, slots=True)
class ContributionReport:
    """What a node, or a PC with all its devices, has given."""

    uptime_s: int
    token_layers: int
    """Tokens times layers computed."""
    bytes_sent: int
    """Bytes uploaded, as the node says."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Device that has joined, and what it does."""

    id: str
    name: str
    pc: str
    """Id of the PC that it belongs to."""
    state: str
    drained: bool
    """Whether the operator has drained it."""
    quarantined: bool
    """Whether audits have found it out."""
    version: str | None
    """Version of its MoLink; None: not told."""
    protocol: int | None
    reason: str
    """Why it is in its state; empty: nothing is to be said."""
    ring: int | None
    """Number of its ring; None: it is in none."""
    layers: tuple[int, int] | None
    """Layers that it holds, [first, behind the last]; None: none."""
    covers: str | None
    """Name of the node whose place it takes should that go; None: of none."""
    shadow: ShadowReport | None
    """How far its KV for that node is behind; None: it holds none."""
    loaded: float | None
    """Progress of its download and load, 0 to 1; None: nothing is under way."""
    device: str | None
    memory: MemoryReport | None
    paths: Mapping[str, str]
    """Kind of the path to each neighbour: direct or relay."""
    profile: ProfileReport | None
    """None until it has measured its PC."""
    contribution: ContributionReport
    doubts: tuple[str, ...]
    """Sentences on figures of its own that others do not see."""

    @property
    def layer_step_s(self) -> float | None:
        """Seconds of one row through one layer, as measured when it joined."""
        steps = self.profile.steps if self.profile is not None else None
        return None if steps is None else steps.layer_step_s
