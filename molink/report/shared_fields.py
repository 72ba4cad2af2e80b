"""Copies fields of the same name from facts into a report.

A stage reports with one class and the API shows another, so that neither depends on the other's
format. Where both have a field, it is copied by its name, and only what is computed is written out.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def report_of(of: type[T], *facts: Any, **own: Any) -> T:
    """A report with these fields of its own; each other one is that of the first fact that has a
    field of its name, made a report as well where it is to be one.

    Raises TypeError: a field without a default is in no fact.
    """
    for name, kind in _kinds(of).items():
        fact = next((one for one in facts if name not in own and hasattr(one, name)), None)
        if fact is not None:
            value = getattr(fact, name)
            own[name] = value if kind is None or value is None else report_of(kind, value)
    return of(**own)


def _kinds_of(of: Any) -> Mapping[str, Any]:
    """Names of a report's fields, and the class of those that are reports themselves."""
    hints = get_type_hints(of)
    return {one.name: _report(hints[one.name]) for one in fields(of)}


_kinds: Callable[[Any], Mapping[str, Any]] = cache(_kinds_of)


def _report(hint: Any) -> Any:
    """The class of a field that is a report, or may be None in its place."""
    found = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return next((one for one in found if is_dataclass(one)), None)
