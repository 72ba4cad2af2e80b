"""Assignments in one line, for tests of whoever gives, carries out or reports them."""

from molink.control.messages.assignment import Assignment, Load, Stop
from molink.control.messages.payloads import AssignedWork


def loading(work: AssignedWork, revision: int = 1, **place: object) -> Assignment:
    """To load these layers."""
    return Assignment(revision=revision, command=Load(work=work), **place)


def stopping(revision: int = 1, **place: object) -> Assignment:
    """To hold nothing."""
    return Assignment(revision=revision, command=Stop(), **place)
