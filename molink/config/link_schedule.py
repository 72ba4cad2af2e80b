"""A link that changes while it is used: steps of rate and delay, from `--link`.

`--link 100:30` is one step that holds for good; `--link FILE` reads lines `t_s, mbps, one_way_ms`,
times from the start of the emulator, the first at 0.
"""

import csv
import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError

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


STEPS_MAX = 10_000
"""An hour of steps of a third of a second."""


@dataclass(frozen=True, slots=True)
class LinkStep:
    """Shape that a link has from this time on."""

    at_s: float
    shape: LinkShape


@dataclass(frozen=True, slots=True)
class LinkSchedule:
    """Steps in order of time, the first at 0."""

    steps: tuple[LinkStep, ...]

    def __post_init__(self) -> None:
        times = [step.at_s for step in self.steps]
        if not times or times[0] != 0 or times != sorted(set(times)):
            raise UserError("A link's steps must start at t_s 0 and rise in time.")

    @classmethod
    def parse(cls, text: str) -> "LinkSchedule":
        """Read `RATE_MBPS:ONE_WAY_MS`, or the step file at this path. Raises UserError."""
        path = Path(text)
        if path.is_file():
            return cls(_read_steps(path))
        return cls((LinkStep(0.0, LinkShape.parse(text)),))

    @property
    def text(self) -> str:
        """One line that `from_text` reads: how the schedule is handed to another process."""
        steps = self.steps
        return ";".join(f"{s.at_s!r},{s.shape.rate_mbps!r},{s.shape.one_way_ms!r}" for s in steps)

    @classmethod
    def from_text(cls, text: str) -> "LinkSchedule":
        """The schedule that `text` describes."""
        return cls(tuple(_step(part.split(","), part) for part in text.split(";")))

    def step_at(self, time_s: float) -> LinkShape:
        """The shape that holds at a time."""
        index = bisect_right([step.at_s for step in self.steps], time_s) - 1
        return self.steps[max(0, index)].shape

    def wire_done_at(self, start_s: float, size_bytes: float) -> float:
        """Time when the last of `size_bytes` has left, the first one leaving at `start_s`."""
        left_bytes, time_s = size_bytes, start_s
        for step, following in zip(self.steps, [*self.steps[1:], None], strict=True):
            end_s = following.at_s if following else math.inf
            if end_s <= time_s:
                continue
            done_s = time_s + left_bytes / step.shape.bytes_per_s
            if done_s <= end_s:
                return done_s
            left_bytes -= (end_s - time_s) * step.shape.bytes_per_s
            time_s = end_s
        raise AssertionError("the last step never ends")


def _read_steps(path: Path) -> tuple[LinkStep, ...]:
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row and not row[0].lstrip().startswith("#")]
    if rows and rows[0][0].strip() == "t_s":
        rows = rows[1:]
    if not 1 <= len(rows) <= STEPS_MAX:
        raise UserError(f"{path} must hold 1 to {STEPS_MAX} steps `t_s, mbps, one_way_ms`.")
    return tuple(_step(row, f"{path}: {','.join(row)}") for row in rows)


def _step(fields: list[str], source: str) -> LinkStep:
    try:
        at_s, rate_mbps, one_way_ms = (float(field) for field in fields)
    except ValueError:
        raise UserError(f"A link's step is `t_s, mbps, one_way_ms`, got {source!r}.") from None
    if not math.isfinite(at_s):
        raise UserError(f"A link's step needs a finite time, got {source!r}.")
    return LinkStep(at_s, LinkShape(rate_mbps, one_way_ms))
