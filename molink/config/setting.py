"""One setting: a field that says how it is typed, what it may be, and what it is for.

`setting` makes a field of a frozen dataclass, which is a group of settings; name, type and default
are the field's own. The options of a command are made from its groups (`molink.cli.options`), and
so are the refusals of values out of range. A setting is written once: a table of options beside the
dataclass would say most of it again, and drift.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from molink.config.toml_tables import ABOVE_0
from molink.errors import UserError
from molink_scheduler.units import GB, bytes_of_gb

Value = TypeVar("Value")
Group = TypeVar("Group")

REQUIRED: Any = MISSING
"""Default of a setting that has none: without it the command finds a value."""


@dataclass(frozen=True, slots=True)
class Typed:
    """How values of a kind are typed: the way in, and the way back for defaults and bounds."""

    kind: type | None = None
    """Type of what is typed; None: the field's own."""
    read: Callable[[Any], Any] = lambda typed: typed
    """Value from what was typed. Raises ValueError with what completes "--option"."""
    written: Callable[[Any], Any] = lambda value: value


def _auto_or_count(typed: str) -> int | None:
    try:
        return None if typed == "auto" else int(typed)
    except ValueError:
        raise ValueError(f"takes auto or a whole number, got {typed!r}") from None


def _auto_or_bytes(typed: str) -> int | None:
    try:
        size_gb = None if typed == "auto" else float(typed)
    except ValueError:
        raise ValueError(f"takes auto or a size in GB, got {typed!r}") from None
    return None if size_gb is None else _bytes_of(size_gb)


def _bytes_of(size_gb: float) -> int:
    if not math.isfinite(size_gb):
        raise ValueError(f"takes a size in GB, got {size_gb:g}")
    return bytes_of_gb(size_gb)


AUTO_OR_COUNT = Typed(str, _auto_or_count, lambda count: "auto" if count is None else count)
GIGABYTES = Typed(float, _bytes_of, lambda size: size / GB)
"""Sizes are typed in GB, and are bytes from there on."""
AUTO_OR_GIGABYTES = Typed(str, _auto_or_bytes, lambda size: "auto" if size is None else size / GB)


@dataclass(frozen=True, slots=True)
class Setting:
    """Option of a setting, and the values that it may have."""

    option: str
    metavar: str
    """Name of its value in help; empty: that of its type."""
    help: str
    within: tuple[float, float] | None = None
    """Least and most; ABOVE_0: any that is above 0. None: it is no number, or any."""
    choices: Sequence[str] = ()
    typed: Typed = Typed()
    envvar: str | None = None
    """Environment variable that may hold it instead."""

    def read(self, typed: Any) -> Any:
        """The value that was typed. Raises UserError for what is none."""
        try:
            return self.typed.read(typed)
        except ValueError as error:
            raise UserError(f"{self.option} {error}.") from None

    def check(self, value: Any) -> None:
        """Raise UserError for a value that it must not have."""
        if self.choices and value not in self.choices:
            names = ", ".join(self.choices)
            raise UserError(f"{self.option} must be one of {names}, got {value!r}.")
        if self.within is None:
            return
        least, most = self.within
        if not (math.isfinite(value) and least <= value <= most):
            raise UserError(f"{self.option} must be {self._range}, got {self._text(value)}.")

    @property
    def _range(self) -> str:
        least, most = self.within or (-math.inf, math.inf)
        if least != ABOVE_0:
            return f"{self._text(least)} to {self._text(most)}"
        return "above 0" if most == math.inf else f"above 0 and at most {self._text(most)}"

    def _text(self, value: float) -> str:
        typed = self.typed.written(value)
        return f"{typed:g}" if isinstance(typed, float) else str(typed)


def setting(usage: str, default: Value, told: str, **how: Any) -> Value:
    """A field of a group: its option with the name of its value, as `--port N`, its default and its
    help; `how` are further fields of `Setting`."""
    option, _, metavar = usage.partition(" ")
    metadata = {Setting: Setting(option, metavar, told, **how)}
    made: Any = field(default=default, metadata=metadata)
    return made  # type: ignore[no-any-return]


def settings_in(group: Any) -> "Iterator[tuple[Field[Any], Setting]]":
    """All settings of a group and of the groups in it, in their order."""
    for one in fields(group):
        if Setting in one.metadata:
            yield one, one.metadata[Setting]
        elif _is_group(one.type):
            yield from settings_in(one.type)


def check_settings(group: Any) -> None:
    """Raise UserError for the first setting of a group that is out of range."""
    for one in fields(group):
        value = getattr(group, one.name)
        if Setting in one.metadata and value is not None:
            one.metadata[Setting].check(value)


def settings_of(group: type[Group], **values: Any) -> Group:
    """A group of these values, those of the groups in it among them, by name."""
    made: Group = _made(group, values)
    if values:
        raise TypeError(f"{group.__name__} has no {', '.join(values)}")
    return made


def _made(group: Any, values: dict[str, object]) -> Any:
    found = {}
    for one in fields(group):
        if one.name in values:
            found[one.name] = values.pop(one.name)
        elif _is_group(one.type):
            found[one.name] = _made(one.type, values)
    return group(**found)


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)
