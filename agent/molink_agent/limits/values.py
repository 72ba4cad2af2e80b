"""What a setting may be: numbers within bounds, yes or no, hours, a device.

Each kind reads a value as TOML gives it and as a person types it after `molink agent set KEY`, and
writes it back. What is wrong is a ValueError whose text completes a sentence of the caller's.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from molink_agent.limits.hours import HOURS_ALLOWED, LendingHours

__all__ = ["DEVICES_MAX", "Devices", "Flag", "Hours", "Number", "ValueKind", "Whole"]

HOURS_ENTRIES_MAX = 50
"""Seven days in pieces of four hours are 42."""

DEVICES_MAX = 16
"""Of one PC, as the coordinator admits them (`molink.control.registry.rules`)."""

NUMBERLESS = {"cuda": "cuda:0"}
"""What people call the only card."""

YES = frozenset({"yes", "true", "on", "1"})
NO = frozenset({"no", "false", "off", "0"})


class ValueKind(Protocol):
    """One kind of value."""

    @property
    def allowed(self) -> str:
        """Completes "it must be"."""

    def of_toml(self, value: Any) -> Any:
        """The value, checked. Raises ValueError."""

    def of_text(self, text: str) -> Any:
        """The same from what was typed. Raises ValueError."""

    def to_toml(self, value: Any) -> str:
        """The value as TOML."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `low` to `high`."""

    low: float
    high: float
    unit: str

    @property
    def allowed(self) -> str:
        """Completes "it must be"."""
        return f"a number of {self.unit} from {self.low:g} to {self.high:g}"

    def of_toml(self, value: Any) -> float:
        """Whole numbers count too."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{value!r} is not a number")
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise ValueError(f"{value:g} is out of bounds")
        return float(value)

    def of_text(self, text: str) -> float:
        """With a point for fractions."""
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        return self.of_toml(number)

    def to_toml(self, value: Any) -> str:
        """Without a fraction where there is none."""
        return str(int(value)) if float(value).is_integer() else repr(float(value))


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int
    high: int
    unit: str

    @property
    def allowed(self) -> str:
        """Completes "it must be"."""
        return f"a whole number of {self.unit} from {self.low} to {self.high}"

    def of_toml(self, value: Any) -> int:
        """No fractions."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{value!r} is not a whole number")
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is out of bounds")
        return value

    def of_text(self, text: str) -> int:
        """Digits."""
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        return self.of_toml(number)

    def to_toml(self, value: Any) -> str:
        """Digits."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    allowed: str = "true or false"

    def of_toml(self, value: Any) -> bool:
        """Not a number, not a string."""
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value

    def of_text(self, text: str) -> bool:
        """As people say it."""
        if text.lower() not in YES | NO:
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in YES

    def to_toml(self, value: Any) -> str:
        """In small letters."""
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Hours:
    """One or several entries of hours."""

    allowed: str = f"hours like {HOURS_ALLOWED}"

    def of_toml(self, value: Any) -> tuple[LendingHours, ...]:
        """A string or a list of them."""
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, list) or not all(isinstance(one, str) for one in entries):
            raise ValueError(f"{value!r} is neither hours nor a list of hours")
        if not entries:
            raise ValueError("an empty list leaves no hour to give")
        if len(entries) > HOURS_ENTRIES_MAX:
            raise ValueError(f"{len(entries)} entries are more than {HOURS_ENTRIES_MAX}")
        return tuple(LendingHours.parse(one) for one in entries)

    def of_text(self, text: str) -> tuple[LendingHours, ...]:
        """Entries apart by commas."""
        return self.of_toml([part for part in text.split(",") if part.strip()])

    def to_toml(self, value: Any) -> str:
        """Always a list."""
        return "[" + ", ".join(f'"{entry.text}"' for entry in value) + "]"


@dataclass(frozen=True, slots=True)
class Devices:
    """Which devices hold stages, one each: names apart by commas, `cpu` as often as there shall be
    stages on it."""

    allowed: str = "auto, cpu or cuda:N, several with commas between them"

    def of_toml(self, value: Any) -> str:
        """The names as they were given, without spaces."""
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

    def of_text(self, text: str) -> str:
        """The same."""
        return self.of_toml(text)

    def to_toml(self, value: Any) -> str:
        """Quoted."""
        return f'"{value}"'
