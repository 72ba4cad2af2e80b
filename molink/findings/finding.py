"""Finding: one thing that stands out, with its kind and what helps.

Kinds are few and fixed, since a label of a metric is made of them. A kind says how long a finding
must hold before it is told, and how long it stays once it has ceased: sentences that come and go
with each look are read by nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad a finding is; the worst come first."""

    BAD = 0
    WARNING = 1
    NOTE = 2

    @property
    def word(self) -> str:
        """The severity as programs read it."""
        return self.name.lower()


BAD, WARNING, NOTE = Severity.BAD, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True, slots=True)
class FindingKind:
    """Kind of findings: how bad they may be, what helps, and when they are told."""

    severities: tuple[Severity, ...]
    """Severities that its findings may have."""
    remedy: str
    """Sentence that says what to do."""
    after_s: float = 0.0
    """Seconds for which it must hold before it is told."""
    stays_s: float = 0.0
    """Seconds for which it stays after it has held last."""


AGENT_STARTS = "Start its agent again, or let it be: its layers go to others as far as they fit."

KINDS: Mapping[str, FindingKind] = {
    "no_answer": FindingKind((BAD,), "Look at the coordinator's machine, and at the line to it."),
    "unready": FindingKind((BAD,), "Start agents on more PCs, or wait until the ring has loaded."),
    "stage_lost": FindingKind(
        (BAD,), "Wait: the ring goes on by itself. If it happens often, drain that PC."
    ),
    "stage_silent": FindingKind((BAD,), "Look whether that PC is switched on and has its line."),
    "ring_stands": FindingKind(
        (BAD,), "Wait some seconds: a ring that stands is given up, and answers go on.", 0.0, 3.0
    ),
    "refusals": FindingKind(
        (BAD, WARNING), "Let more PCs join, raise --queue-s, or give keys a lower rate."
    ),
    "failures": FindingKind((WARNING,), "Look at the requests that failed: each says why."),
    "node_lost": FindingKind((BAD,), AGENT_STARTS),
    "slow": FindingKind((BAD,), "Close what else computes on that PC, or drain it.", 0.0, 10.0),
    "disk": FindingKind((BAD, WARNING), "Free room on the coordinator's disk."),
    "certificate": FindingKind(
        (BAD, WARNING), "Put a renewed one in its file, and start the coordinator again."
    ),
    "trouble": FindingKind((BAD,), "Do what the sentence says."),
    "intake_paused": FindingKind((WARNING,), "Open it when you want: key p of the dashboard."),
    "outdated": FindingKind((WARNING,), "Update MoLink on that PC."),
    "key_refused": FindingKind(
        (WARNING,), "Give its holder the new key if it was rotated, else one of molink key create."
    ),
    "link_queue": FindingKind(
        (WARNING,), "Look for other uploads on that line, or drain its PC.", 0.0, 5.0
    ),
    "link_full": FindingKind((NOTE,), "It carries what it can: nothing to do.", 5.0, 10.0),
    "pace": FindingKind((NOTE,), "Nothing to do: the plan may give it fewer layers.", 2.0, 30.0),
    "doubt": FindingKind((NOTE,), "Compare the node's details with what its owner says.", 0, 10.0),
    "resumed": FindingKind((NOTE,), "Nothing to do."),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Sentence about one thing that stands out."""

    severity: Severity
    kind: str
    """One of KINDS."""
    subject: str
    """Name of a node, or empty."""
    sentence: str
    about: str = ""
    """What tells it from others of its kind and subject: a ring, a link's other end, a key."""

    @property
    def id(self) -> str:
        """Name of the finding, the same as long as it stands though its figures change."""
        return ":".join(part for part in (self.kind, self.subject, self.about) if part)


@dataclass(frozen=True, slots=True)
class StandingFinding:
    """Finding with the time since which it holds."""

    finding: Finding
    since_s: float
    """Seconds since 1970 by the clock of whoever looks."""
    seen_s: float
    """When it has held last."""
