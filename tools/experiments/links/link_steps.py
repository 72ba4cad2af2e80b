"""A link whose rate changes in equal steps, the first of them longer by a lead."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["LinkSteps"]


@dataclass(frozen=True, slots=True)
class LinkSteps:
    """Times count from the end of the lead."""

    rates_mbps: tuple[float, ...]
    step_s: float
    lead_s: float
    one_way_s: float

    @property
    def changes_s(self) -> list[float]:
        """When the rate changes."""
        return [number * self.step_s for number in range(1, len(self.rates_mbps))]

    @property
    def duration_s(self) -> float:
        """From the end of the lead to that of the last step."""
        return len(self.rates_mbps) * self.step_s

    def is_steady(self, at_s: float, after_s: float) -> bool:
        """Whether the last change (or the beginning of the load) is `after_s` ago."""
        return at_s < self.duration_s and at_s % self.step_s >= after_s

    def write(self, path: Path) -> None:
        """As `molink serve --link FILE` reads it: times from the emulator's start."""
        starts = [0.0, *(self.lead_s + change_s for change_s in self.changes_s)]
        rows = [
            f"{at_s:g},{mbps:g},{self.one_way_s * 1000:g}"
            for at_s, mbps in zip(starts, self.rates_mbps, strict=True)
        ]
        path.write_text("\n".join(["t_s,mbps,one_way_ms", *rows]) + "\n")
