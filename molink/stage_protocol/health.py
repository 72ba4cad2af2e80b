"""How a stage is doing, as it tells its supervisor and GET /cluster shows it.

A report may come from a stranger's PC, and its figures are computed with: each has a type and a
bound, which `health_from_fields` checks.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from molink.errors import FrameError
from molink_scheduler.link.facts import LinkReport

__all__ = ["PackingHealth", "StageHealth", "health_from_fields"]

FIGURE_MAX = 2**53
"""Beyond it integers are not exact as floats; no count of ours comes near."""

NAME_LENGTH_MAX = 40
"""Of a link or a codec."""

LINKS_MAX = 4
"""A stage has two that leave it at most."""

Count = Annotated[int, Field(strict=True, ge=0, le=FIGURE_MAX)]
Figure = Annotated[float, Field(strict=True, ge=0, le=FIGURE_MAX, allow_inf_nan=False)]
Name = Annotated[str, Field(strict=True, max_length=NAME_LENGTH_MAX)]


def _check_link(raw: Any) -> Any:
    """The core's own type says what each figure of a link is; here are the bounds."""
    for field in fields(LinkReport):
        value: Any = raw.get(field.name) if isinstance(raw, dict) else None
        if type(value) is not field.type and (type(value), field.type) != (int, float):
            raise ValueError(f"{field.name} is missing or of another type")
        within = len(value) <= NAME_LENGTH_MAX if field.type is str else 0 <= value <= FIGURE_MAX
        if not within:
            raise ValueError(f"{field.name} is out of bounds")
    return raw


Link = Annotated[LinkReport, BeforeValidator(_check_link)]


@dataclass(frozen=True, slots=True)
class PackingHealth:
    """What one codec did to activations since it came into use, on one side of a link."""

    codec: Name
    raw_bytes: Count
    """Of the unpacked rows."""
    packed_bytes: Count
    seconds: Figure
    """Spent on packing, or on unpacking."""


@dataclass(frozen=True, slots=True)
class StageHealth:
    """Fact: how the stage is doing, about twice a second while it works."""

    kv_tokens_used: Count
    busy_s: Figure
    """Seconds of computing since the start."""
    busy_share: Figure
    """Part of the time since the last report."""
    steps: Count
    requests_running: Count | None
    """Only on the head."""
    requests_waiting: Count | None
    frames_refused: Count
    """Messages dropped: malformed, of another epoch, or not to be carried out here."""
    packed: PackingHealth
    """Activations that left."""
    unpacked: PackingHealth
    """Activations that came."""
    bytes_saved: Annotated[int, Field(strict=True, ge=-FIGURE_MAX, le=FIGURE_MAX)]
    """What packing has saved since the start; negative where it made rows larger."""
    decode_round_s: Figure | None
    """Smoothed time between two visits of a micro-batch."""
    micro_batch_count: Count | None
    """Only on the head."""
    decode_step_s: Figure
    prefill_row_s: Figure
    links: Annotated[tuple[Link, ...], Field(max_length=LINKS_MAX)]


_REPORT = TypeAdapter(StageHealth)


def health_from_fields(raw: dict[str, Any]) -> StageHealth:
    """A report from what JSON holds of it. Raises FrameError when it is none."""
    try:
        return _REPORT.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FrameError(f"not a report of a stage's health ({where}: {first['msg']})") from None
