"""Goodput: how many answers came whole, and within all of their targets.

Mooncake counts a request that misses a target as if it had not been served: what was computed for
it was in vain. A request that nobody gave a target is not counted, nor is one whose client went
away. An answer that came to an error, or to its deadline, was not whole.
"""

from dataclasses import dataclass, field

from molink.report.requests import GoodputReport
from molink.serving.timeline import OVERLOADED, RequestTimeline

MET, REFUSED, FAILED = "met", "refused", "failed"
MISSED = ("ttft_missed", "tpot_missed", "tbt_missed")
"""Outcomes of whole answers by the target that was missed furthest, in the order of targets."""

OUTCOMES = (MET, REFUSED, *MISSED, FAILED)

WHOLE = ("stop", "length")
"""Finish reasons of answers that are whole."""


def outcome_of(timeline: RequestTimeline) -> str | None:
    """Outcome of a request that has ended, one of `OUTCOMES`; None: it is not counted."""
    if not timeline.targets.are_set or timeline.finish_reason == "cancelled":
        return None
    if timeline.finish_reason not in WHOLE:
        return REFUSED if timeline.finish_reason == OVERLOADED else FAILED
    tbt_s = timeline.gaps_within_s(timeline.targets.tbt_percentile)
    came_s = timeline.ttft_s, timeline.tpot_s, tbt_s
    shares = timeline.targets.shares_of(*(one or 0.0 for one in came_s))
    most = max(shares)
    return MET if most <= 1 else MISSED[shares.index(most)]


@dataclass(slots=True)
class Goodput:
    """Count of requests with targets by their outcome, since the start."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    def ended(self, timeline: RequestTimeline) -> None:
        """Take a request into account that has ended."""
        if (outcome := outcome_of(timeline)) is not None:
            self.counts[outcome] += 1

    @property
    def report(self) -> GoodputReport | None:
        """The counts; None while there are none."""
        asked = sum(self.counts.values())
        return GoodputReport(asked, **self.counts) if asked else None
