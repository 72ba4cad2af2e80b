"""What a limit may be: numbers within bounds, yes or no, hours, devices.

Each kind reads a value as TOML gives it and as a person types it after `molink agent set KEY`, and
writes it back. What is wrong is a ValueError whose text completes a sentence of the caller's.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from molink_agent.limits.hours import HOURS_ALLOWED, LendingHours

__all__ = ["DEVICES", "DEVICES_MAX", "FLAG", "HOURS", "ValueKind", "number"]

HOURS_ENTRIES_MAX = 50
"""Seven days in pieces of four hours are 42."""

DEVICES_MAX = 16
"""Of one PC, as the coordinator admits them (`molink.control.registry.rules`)."""

NUMBERLESS = {"cuda": "cuda:0"}
"""What people call the only card."""

YES = frozenset({"yes", "true", "on", "1"})
NO = frozenset({"no", "false", "off", "0"})


@dataclass(frozen=True, slots=True)
class ValueKind:
    """Kind of value that a limit takes: how it is read and written."""

    allowed: str
    """Completes "it must be"."""
    of_toml: Callable[[Any], Any]
    """The value, checked. Raises ValueError."""
    of_text: Callable[[str], Any]
    """The same from what was typed. Raises ValueError."""
    to_toml: Callable[[Any], str]


def number(low: float, high: float, unit: str, *, whole: bool = False) -> ValueKind:
    """Kind of the numbers from `low` to `high`; `whole` ones have no fraction."""
    noun = "whole number" if whole else "number"

    def of_toml(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ValueError(f"{value!r} is not a {noun}")
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"{value if whole else f'{value:g}'} is out of bounds")
        return value if whole else float(value)

    def of_text(text: str) -> float:
        try:
            typed = int(text) if whole else float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a {noun}") from None
        return of_toml(typed)

    def to_toml(value: float) -> str:
        return str(int(value)) if float(value).is_integer() else repr(float(value))

    allowed = f"a {noun} of {unit} from {low:g} to {high:g}"
    return ValueKind(allowed, of_toml, of_text, to_toml)


def _flag_of_toml(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _flag_of_text(text: str) -> bool:
    if text.lower() not in YES | NO:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in YES


def _hours_of_toml(value: Any) -> tuple[LendingHours, ...]:
    """From one entry or a list of them."""
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{value!r} is neither hours nor a list of hours")
    if not entries:
        raise ValueError("an empty list leaves no hour to give")
    if len(entries) > HOURS_ENTRIES_MAX:
        raise ValueError(f"{len(entries)} entries are more than {HOURS_ENTRIES_MAX}")
    return tuple(LendingHours.parse(entry) for entry in entries)


def _hours_of_text(text: str) -> tuple[LendingHours, ...]:
    """From entries with commas between them."""
    return _hours_of_toml([part for part in text.split(",") if part.strip()])


def _hours_to_toml(value: tuple[LendingHours, ...]) -> str:
    return "[" + ", ".join(f'"{entry.text}"' for entry in value) + "]"


def _devices(value: Any) -> str:
    """The names as they were given, without spaces; `cpu` as often as there shall be stages on
    it."""
    text = value if isinstance(value, str) else ""
    names = [NUMBERLESS.get(name, name) for name in text.lower().replace(" ", "").split(",")]
    if names == ["auto"]:
        return "auto"
    cards = [name for name in names if name != "cpu"]
    if not all(re.fullmatch(r"cuda:\d{1,2}", name) for name in cards):
        raise ValueError(f"{value!r} is no device")
    if len(set(cards)) < len(cards):
        raise ValueError(f"{value!r} names a card twice")
    if len(names) > DEVICES_MAX:
        raise ValueError(f"{len(names)} devices are more than {DEVICES_MAX}")
    return ",".join(names)


FLAG = ValueKind("true or false", _flag_of_toml, _flag_of_text, lambda value: str(value).lower())
HOURS = ValueKind(f"hours like {HOURS_ALLOWED}", _hours_of_toml, _hours_of_text, _hours_to_toml)
DEVICES = ValueKind(
    "auto, cpu or cuda:N, several with commas between them",
    _devices,
    _devices,
    lambda value: f'"{value}"',
)
