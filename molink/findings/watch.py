"""Watch over one cluster: its series, and the findings that stand.

A finding is told once it has held for its kind's `after_s`, and stays for `stays_s` after it has
ceased, so that nothing comes and goes with each look. Pure: time is that of the looks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from molink.findings.finding import KINDS, Finding, StandingFinding
from molink.findings.judged import judged
from molink.findings.series import Series
from molink.report.cluster import ClusterReport
from molink.report.events import ClusterEvent
from molink.report.findings import FindingReport, FindingsReport
from molink.report.requests import RequestReport

OF_WHO_IS_GONE = frozenset({"node_lost", "stage_lost", "stage_silent"})
OF_WHO_IS_HERE = frozenset({"doubt", "link_full", "link_queue", "pace", "slow"})
"""Kinds of findings on a node: who is gone is not slow as well, however it was before."""


@dataclass(slots=True)
class ClusterWatch(Series):
    """Series of a cluster with what stands out in them."""

    _standing: dict[str, StandingFinding] = field(default_factory=dict)

    def note(
        self,
        at_s: float,
        report: ClusterReport,
        requests: Sequence[RequestReport] | None = None,
        events: Iterable[ClusterEvent] | None = None,
    ) -> None:
        """Take one look into account, as `Series.note` does, and judge."""
        Series.note(self, at_s, report, requests, events)
        self._judge()

    def failed(self, at_s: float, trouble: str) -> None:
        """Take into account that a look has failed, and judge."""
        Series.failed(self, at_s, trouble)
        self._judge()

    def _judge(self) -> None:
        before, now_s = self._standing, self.at_s
        found = {}
        said = judged(self)
        gone = {one.subject for one in said if one.kind in OF_WHO_IS_GONE}
        gone |= {one.name for one in self.state.nodes if one.state == "lost"}
        for one in said:
            if one.kind in OF_WHO_IS_HERE and one.subject in gone:
                continue
            since_s = before[one.id].since_s if one.id in before else now_s
            found[one.id] = StandingFinding(one, since_s, now_s)
        stays = {
            key: one
            for key, one in before.items()
            if key not in found
            and not (one.finding.kind in OF_WHO_IS_HERE and one.finding.subject in gone)
            and _is_told(one, one.seen_s)
            and 0 <= now_s - one.seen_s < KINDS[one.finding.kind].stays_s
        }
        self._standing = found | stays

    @property
    def standing(self) -> list[StandingFinding]:
        """All that stands out, the worst first, of these the oldest first."""
        told = [one for one in self._standing.values() if _is_told(one, self.at_s)]
        return sorted(told, key=lambda one: (one.finding.severity, one.since_s))

    @property
    def findings(self) -> list[Finding]:
        """The findings alone, in the same order."""
        return [one.finding for one in self.standing]

    def report(self) -> FindingsReport:
        """The findings as `GET /cluster/findings` tells them."""
        return FindingsReport(self.now_unix_s, tuple(self._told(one) for one in self.standing))

    def _told(self, one: StandingFinding) -> FindingReport:
        found = one.finding
        return FindingReport(
            id=found.id,
            kind=found.kind,
            severity=found.severity.word,
            since_unix_s=round(self.now_unix_s - (self.at_s - one.since_s), 3),
            subject=found.subject,
            sentence=found.sentence,
            remedy=KINDS[found.kind].remedy,
        )


def _is_told(one: StandingFinding, at_s: float) -> bool:
    """Whether it has held for long enough at this time."""
    return at_s - one.since_s >= KINDS[one.finding.kind].after_s
