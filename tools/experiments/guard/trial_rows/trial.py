"""What a trial is, and what comes of it: a row of the page's table."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "Trial"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a trial, and whether they reach its aim."""

    measured: str
    """As the table says it."""
    reached: bool
    found: dict[str, Any] = field(default_factory=dict)
    """What else is kept in the report."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One row of the table."""

    name: str
    """By which it is chosen."""
    what: str
    before: str
    """What became of it before the guards of this page were built."""
    aim: str
    run: Callable[[], Coroutine[Any, Any, Outcome]]
