"""How busy a stage or a link was over the counted time, and its bars of the Gantt picture."""

from dataclasses import dataclass, field

from molink_scheduler.batch import BatchClass
from molink_sim.outcome import Activity

__all__ = ["Usage"]


@dataclass(slots=True)
class Usage:
    """Of one stage or one link."""

    lane: str
    """`ring 0 stage 1`."""
    counted_from_s: float
    counted_until_s: float
    timeline: list[Activity] | None = None
    """Where bars are collected, shared by all; None: nobody wants them."""
    busy_s: float = field(init=False, default=0.0)
    count: int = field(init=False, default=0)
    """Steps, or what went over the wire in one piece."""
    size_bytes: int = field(init=False, default=0)

    def add(
        self,
        start_s: float,
        end_s: float,
        batch_class: BatchClass,
        rows: int,
        size_bytes: int = 0,
        *,
        is_new: bool = True,
    ) -> None:
        """It was busy with one thing; counted is what began within the counted time.

        Not `is_new` is the rest of something that was interrupted: busy time, but no further one.
        """
        if self.counted_from_s <= start_s < self.counted_until_s:
            until_s = self.counted_until_s
            self.busy_s += (end_s if end_s < until_s else until_s) - start_s
            self.count += is_new
            self.size_bytes += size_bytes
        if self.timeline is not None:
            self._draw(start_s, end_s, batch_class.name.lower(), rows)

    @property
    def busy_share(self) -> float:
        """Of the counted time."""
        counted_s = self.counted_until_s - self.counted_from_s
        return self.busy_s / counted_s if counted_s > 0 else 0.0

    def _draw(self, start_s: float, end_s: float, kind: str, rows: int) -> None:
        assert self.timeline is not None
        self.timeline.append(Activity(self.lane, kind, start_s, end_s, rows))
