"""Forecast of a stage whose link does not ask when decode is due."""

from molink_scheduler.timing.next_decode import DecodeForecast
from molink_scheduler.timing.steps import DecodeClock


class UnaskedForecast(DecodeForecast):
    """Forecast that learns nothing and foretells nothing.

    A link whose order is given (`ForecastIgnored`) drops what it is told, and nothing else of a
    simulated run depends on it. Learning it all the same took an eighth of a long ring's time.
    """

    __slots__ = ()

    def due_at(self, clock: DecodeClock, now: float, waiting_rows: int = 0) -> float | None:
        """No decode is expected."""
        return None

    def begins(self, clock: DecodeClock, slot: int, rows: int, now: float) -> float:
        """A step begins; nobody hears when it is due."""
        return now

    def ends(self) -> None:
        """The step under way has ended."""

    def result_left(self, rows: int, elapsed_s: float, now: float) -> None:
        """The result of a step has left."""
