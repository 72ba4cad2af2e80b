"""The dashboard without a terminal: lines for a log or a pipe.

One line for each event and for each thing that comes to stand out or ceases to, and now and then
one that says how it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import tzinfo

from molink.dashboard.model.history import History
from molink.findings.finding import Finding, Severity
from molink.findings.series import percentile
from molink.report.figures import clock, per_s, seconds

STATUS_S = 10.0
"""Seconds between two lines that say how the cluster is."""


@dataclass(slots=True)
class PlainNews:
    """Maker of lines from what changes."""

    zone: tzinfo | None = None
    _status_at_s: float | None = None
    _standing: dict[str, Finding] = field(default_factory=dict)
    """What stands out, by its id: the figures in a sentence change."""
    _event: tuple[float, int] = (0.0, 0)
    """Time and number of the last that was told."""

    def lines(self, history: History) -> Iterator[str]:
        """Lines about all that is new after a look."""
        stamp = clock(history.at_s, self.zone)
        for event in history.events:
            if (event.unix_s, event.seq) > self._event:
                self._event = event.unix_s, event.seq
                yield f"{clock(event.unix_s, self.zone)} {event.text}"
        for sentence in self._changes(history):
            yield f"{stamp} {sentence}"
        if self._status_at_s is None or history.at_s - self._status_at_s >= STATUS_S:
            self._status_at_s = history.at_s
            yield f"{stamp} {_status(history)}"

    def _changes(self, history: History) -> Iterator[str]:
        """What has come to stand out, or is worse than it was; then what has ceased to."""
        now = {one.id: one for one in history.findings if one.severity is not Severity.NOTE}
        before, self._standing = self._standing, now
        for key, one in now.items():
            if key not in before or one.severity < before[key].severity:
                yield f"! {one.sentence}"
        yield from (f"over: {before[key].sentence}" for key in before.keys() - now.keys())


def _status(history: History) -> str:
    state = history.state
    rate = history.tokens_per_s()
    rings = f"{len(state.rings)} ring{'s' * (len(state.rings) != 1)}"
    serving = state.unready_reason or f"serving {state.model} on {rings}"
    return (
        f"{serving}; {state.running} running, {state.waiting} waiting; "
        f"{per_s(rate[-1] if rate else None).removesuffix('/s')} tokens/s; "
        f"TTFT p50 {seconds(percentile(history.ttfts_s(), 0.5))}, "
        f"TPOT p50 {seconds(percentile(history.tpots_s(), 0.5))}"
    )
