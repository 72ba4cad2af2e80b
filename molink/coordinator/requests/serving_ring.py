"""A ring as requests are given to it."""

from dataclasses import dataclass

from molink.coordinator.ring.client import RingClient
from molink.report.cluster import RingForecast
from molink.report.requests import StageLayers


@dataclass(slots=True, eq=False)
class ServingRing:
    """Ring that takes requests, and its forecast."""

    number: int
    client: RingClient
    tokens_per_s: float
    """Forecast, by which rings are compared."""
    promised: RingForecast | None = None
    """Forecast with which it was planned; None: it had none."""
    draining: bool = False
    """Whether it takes no new requests; those that run end here."""

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return not self.draining and self.client.unready_reason is None

    def is_full(self, within_s: float, now: float) -> bool:
        """Whether it takes no more: those that wait would wait too long, all would become slow, or
        a PC's memory runs short."""
        is_short = self.client.short_of_memory and self.client.outstanding_tokens
        return bool(is_short) or self.client.forecaster.line.is_full(within_s, now)

    @property
    def stages(self) -> tuple[StageLayers, ...]:
        """Nodes of the ring and their layers, for the timelines of its requests."""
        return tuple(StageLayers(one.name, one.layers) for one in self.client.ring.stages)
