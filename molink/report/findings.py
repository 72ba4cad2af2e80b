"""Findings as `GET /cluster/findings` tells them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FindingReport:
    """Thing that stands out, for an operator to look at."""

    id: str
    """Name of the finding, the same for as long as it stands."""
    kind: str
    """Kind of the finding, for programs."""
    severity: str
    """bad, warning or note."""
    since_unix_s: float
    """Seconds since 1970."""
    subject: str
    """Name of the node that it is about; empty: about none."""
    sentence: str
    """What stands out."""
    remedy: str
    """What to do."""


@dataclass(frozen=True, slots=True)
class FindingsReport:
    """All that stands out now, the worst first."""

    unix_s: float
    """When that was so, seconds since 1970."""
    findings: tuple[FindingReport, ...]
