"""May the PC be used now? What its owner said, and what the PC is like, decide; nobody else.

Pure: facts and the local time go in, a plain value comes out. It is asked again every few
seconds, so it must not flap: to begin lending the PC must have been idle for as long as its owner
said, to go on it need only look idle for half of that. A touch is an idle time of nought and ends
it at once; an idle time that is rounded, late or told by two desktops in turn does not.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from molink_agent.limits.hours import is_open, next_change
from molink_agent.limits.limits import Limits

__all__ = ["UseFacts", "Verdict", "verdict"]

IDLE_KEEP_SHARE = 0.5
"""Of the idle time that its owner asks for: under it, what is lent is given back."""


@dataclass(frozen=True, slots=True)
class UseFacts:
    """What the PC is like now."""

    lending: bool = False
    """Whether the last verdict allowed it."""
    idle_s: float | None = None
    """Since anybody used it; None: nobody can tell."""
    on_battery: bool | None = None
    """None: no battery, or unknown."""
    paused: bool = False
    """The owner said so."""
    paused_until: datetime | None = None
    """Local time; None: until he says otherwise."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer."""

    allowed: bool
    reason: str
    """A sentence for the owner: what keeps it from being lent, or that nothing does."""
    until: datetime | None = None
    """Local time at which it may change if nobody does anything; None: it depends on people."""


@dataclass(frozen=True, slots=True)
class _Hindrance:
    reason: str
    until: datetime | None = None


def verdict(limits: Limits, facts: UseFacts, now_local: datetime) -> Verdict:
    """`now_local` has no time zone: it is what the clock on the wall says."""
    found = (
        _paused(facts, now_local),
        _on_battery(limits, facts),
        _closed(limits, now_local),
        _in_use(limits, facts, now_local),
    )
    hindrances = [one for one in found if one is not None]
    if not hindrances:
        return Verdict(
            True, "Nothing keeps it from being lent.", next_change(limits.hours, now_local)
        )
    ends = [one.until for one in hindrances if one.until is not None]
    known = len(ends) == len(hindrances)
    return Verdict(False, hindrances[0].reason, max(ends) if known else None)


def _paused(facts: UseFacts, now_local: datetime) -> _Hindrance | None:
    over = facts.paused_until is not None and facts.paused_until <= now_local
    if not facts.paused or over:
        return None
    until = facts.paused_until
    when = f"until {until:%a %H:%M}" if until is not None else "until `molink agent resume`"
    return _Hindrance(f"Paused by its owner, {when}.", until)


def _on_battery(limits: Limits, facts: UseFacts) -> _Hindrance | None:
    if not (limits.pause_on_battery and facts.on_battery):
        return None
    return _Hindrance("The PC runs on its battery (pause_on_battery).")


def _closed(limits: Limits, now_local: datetime) -> _Hindrance | None:
    if is_open(limits.hours, now_local):
        return None
    opens = next_change(limits.hours, now_local)
    assert opens is not None, "closed hours open some time in the week"
    return _Hindrance(f"Outside the hours that its owner lends; next at {opens:%a %H:%M}.", opens)


def _in_use(limits: Limits, facts: UseFacts, now_local: datetime) -> _Hindrance | None:
    wanted = limits.only_when_idle_minutes
    if wanted is None:
        return None
    if facts.idle_s is None:
        return _Hindrance(
            "It cannot be told whether somebody uses this PC, and only_when_idle_minutes is set: "
            "see `molink agent doctor`, or unset it."
        )
    needed_s = wanted * 60 * (IDLE_KEEP_SHARE if facts.lending else 1)
    if facts.idle_s >= needed_s:
        return None
    missing = timedelta(seconds=wanted * 60 - facts.idle_s)
    return _Hindrance(
        f"Somebody uses the PC: lent again after {wanted:g} idle minutes.", now_local + missing
    )
