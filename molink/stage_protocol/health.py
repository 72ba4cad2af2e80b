"""How a stage is doing, as it tells its supervisor and GET /cluster shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from molink.errors import FrameError
from molink_scheduler.link.facts import LinkReport

__all__ = ["PackingHealth", "StageHealth", "health_from_fields"]


@dataclass(frozen=True, slots=True)
class PackingHealth:
    """What one codec did to activations since it came into use, on one side of a link."""

    codec: str
    raw_bytes: int
    """Of the unpacked rows."""
    packed_bytes: int
    seconds: float
    """Spent on packing, or on unpacking."""


@dataclass(frozen=True, slots=True)
class StageHealth:
    """Fact: how the stage is doing, about twice a second while it works."""

    kv_tokens_used: int
    busy_s: float
    """Seconds of computing since the start."""
    busy_share: float
    """Part of the time since the last report."""
    steps: int
    requests_running: int | None
    """Only on the head."""
    requests_waiting: int | None
    frames_refused: int
    """Messages dropped: malformed, of another epoch, or not to be carried out here."""
    packed: PackingHealth
    """Activations that left."""
    unpacked: PackingHealth
    """Activations that came."""
    bytes_saved: int
    """What packing has saved since the start."""
    decode_round_s: float | None
    """Smoothed time between two visits of a micro-batch."""
    micro_batch_count: int | None
    """Only on the head."""
    decode_step_s: float
    prefill_row_s: float
    links: tuple[LinkReport, ...]


def health_from_fields(fields: Mapping[str, Any]) -> StageHealth:
    """A report from what JSON holds of it. Raises FrameError when it is none."""
    try:
        sides = {side: PackingHealth(**fields[side]) for side in ("packed", "unpacked")}
        links = tuple(LinkReport(**link) for link in fields["links"])
        return StageHealth(**{**fields, **sides, "links": links})
    except (TypeError, KeyError) as error:
        raise FrameError(f"not a report of a stage's health: {error}") from error
