"""Limits that the owner of a PC sets on what it lends.

Without limits the PC is lent as far as it does not hurt: free memory but a reserve, half of the
processor, any hour; not on battery, and no card while its owner plays.

Each kind of value is read as TOML gives it and as a person types it after `molink agent set KEY`,
and written back; sizes are typed in GB and kept in bytes. What is wrong is a ValueError whose text
completes a sentence of the caller's.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from molink.errors import UserError
from molink_agent.limits.hours import HOURS_ALLOWED, LendingHours
from molink_scheduler.units import GB, bytes_of_gb

UNSET = frozenset({"none", "unset", "default", ""})
"""Values of `set KEY` that mean: back to what applies without a line in the file."""

SET_COMMAND = "molink agent set"
"""What a mistake in such a value is said to be of; the owner's page leaves it away."""


HOURS_ENTRIES_MAX = 50
"""Seven days in pieces of four hours are 42."""

DEVICES_MAX = 16
"""Most devices of one PC, as the coordinator admits them (`molink.control.registry.rules`)."""

NUMBERLESS = {"cuda": "cuda:0"}
"""Names that people give the only card."""

YES = frozenset({"yes", "true", "on", "1"})
NO = frozenset({"no", "false", "off", "0"})


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """OwnerLimits of one owner, valid once built by `limits_of` or `with_value`; None: no cap."""

    vram_bytes: int | None = None
    memory_bytes: int | None = None
    upload_mbps: float | None = None
    disk_bytes: int | None = None
    hours: tuple[LendingHours, ...] = ()
    only_when_idle_minutes: float | None = None
    pause_on_battery: bool = True
    pause_on_game: bool = True
    threads: int | None = None
    device: str = "auto"
    direct: bool = True
    cache_ram_bytes: int | None = None
    cache_disk_bytes: int | None = None
    lend_ram_bytes: int = 0
    lend_cpu_cores: int = 0
    lend_gpu_bytes: int = 0
    in_ranking: bool = False

    @property
    def device_names(self) -> tuple[str, ...]:
        """The lent devices by name, or ("auto",)."""
        return tuple(self.device.split(","))

    @property
    def wants_gpu(self) -> bool:
        """Whether a card is lent by its name."""
        return any(name.startswith("cuda") for name in self.device_names)

    @property
    def lends_ram(self) -> bool:
        """Whether other PCs may have KV in the main memory."""
        return self.lend_ram_bytes > 0 and self.lend_cpu_cores > 0

    @property
    def lends_cpu_only(self) -> bool:
        """Whether no card is lent, even where there are some."""
        return set(self.device_names) == {"cpu"} and not self.lend_gpu_bytes


@dataclass(frozen=True, slots=True)
class ValueKind:
    """Kind of value that a limit takes: how it is read and written."""

    allowed: str
    """Words that complete "it must be"."""
    of_toml: Callable[[Any], Any]
    """Value of TOML, checked. Raises ValueError."""
    of_text: Callable[[str], Any]
    """Value from what was typed, checked. Raises ValueError."""
    to_toml: Callable[[Any], str]
    to_json: Callable[[Any], Any] = lambda value: value


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


def gigabytes(high: float) -> ValueKind:
    """Kind of the sizes from 0 to `high` GB; a value is in bytes."""
    typed = number(0, high, "GB")
    return ValueKind(
        typed.allowed,
        lambda value: bytes_of_gb(typed.of_toml(value)),
        lambda text: bytes_of_gb(typed.of_text(text)),
        lambda size: typed.to_toml(size / GB),
        lambda size: None if size is None else size / GB,
    )


def _flag_of_toml(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _flag_of_text(text: str) -> bool:
    if text.lower() not in YES | NO:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in YES


def _hours_of_toml(value: Any) -> tuple[LendingHours, ...]:
    """Lending hours from one entry or a list of them."""
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{value!r} is neither hours nor a list of hours")
    if not entries:
        raise ValueError("an empty list leaves no hour to give")
    if len(entries) > HOURS_ENTRIES_MAX:
        raise ValueError(f"{len(entries)} entries are more than {HOURS_ENTRIES_MAX}")
    return tuple(LendingHours.parse(entry) for entry in entries)


def _hours_of_text(text: str) -> tuple[LendingHours, ...]:
    """Lending hours from entries with commas between them."""
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
HOURS = ValueKind(
    f"times like {HOURS_ALLOWED}",
    _hours_of_toml,
    _hours_of_text,
    _hours_to_toml,
    lambda value: [entry.text for entry in value],
)
DEVICES = ValueKind(
    "auto, cpu or cuda:N, several with commas between them",
    _devices,
    _devices,
    lambda value: f'"{value}"',
)


@dataclass(frozen=True, slots=True)
class Key:
    """Limit that an owner can set: its name, what it may be, and what it means."""

    name: str
    kind: ValueKind
    meaning: str
    example: str
    """A value in TOML, shown while the key is not set."""

    @property
    def field(self) -> str:
        """Name of the field that holds it: what is typed in GB is kept in bytes."""
        return f"{self.name.removesuffix('_gb')}_bytes" if self.name.endswith("_gb") else self.name

    def value_in(self, limits: OwnerLimits) -> Any:
        """The value that is set, or what applies without one."""
        return getattr(limits, self.field)

    @property
    def typed(self) -> str:
        """The example as it is typed after `molink agent set KEY`."""
        bare = self.example.strip("[]").replace('", "', ",").strip('"')
        return f'"{bare}"' if " " in bare else bare


KEYS = (
    Key("vram_gb", gigabytes(4096), "Memory of each graphics card, at most.", "6"),
    Key("memory_gb", gigabytes(65536), "Main memory of stages on the CPU together.", "8"),
    Key(
        "upload_mbps",
        number(0.1, 100_000, "Mbit/s"),
        "Upload, at most: everything that the agent sends counts.",
        "10",
    ),
    Key("disk_gb", gigabytes(1_000_000), "Disk for weights, at most.", "50"),
    Key(
        "hours",
        HOURS,
        'When: one or several of "18:00-02:00", "sat-sun 10:00-23:00". Without it always.',
        '["mon-fri 18:00-02:00", "sat-sun 00:00-24:00"]',
    ),
    Key(
        "only_when_idle_minutes",
        number(1, 1440, "minutes"),
        "Only after so long without input and without others' work on the GPU.",
        "10",
    ),
    Key("pause_on_battery", FLAG, "Pause while a laptop runs on its battery.", "true"),
    Key(
        "pause_on_game",
        FLAG,
        "Pause while a program fills the screen, draws a lot, or needs a lent card's memory.",
        "true",
    ),
    Key(
        "threads",
        number(1, 1024, "threads", whole=True),
        "Threads of stages on the CPU together. Else half.",
        "4",
    ),
    Key(
        "device",
        DEVICES,
        'auto (all graphics cards, without any the CPU), or which: "cuda:1", "cuda:0,cpu"; '
        '"cpu,cpu" divides the CPU between two stages.',
        '"auto"',
    ),
    Key(
        "direct",
        FLAG,
        "Whether neighbours may connect straight to this PC; else through the relay.",
        "true",
    ),
    Key(
        "cache_ram_gb",
        gigabytes(65536),
        "Main memory for beginnings of prompts that a device has no room for, at most; 0: none. "
        "Else a part of what is idle, unless memory_gb is set.",
        "2",
    ),
    Key(
        "cache_disk_gb",
        gigabytes(65536),
        "Disk, beside that for weights, for what this memory has no room for. Else none.",
        "10",
    ),
    Key(
        "lend_ram_gb",
        gigabytes(65536),
        "Main memory for KV of stages on other PCs of your LAN, once the operator has confirmed "
        "the cell; 0: none.",
        "8",
    ),
    Key(
        "lend_cpu_cores",
        number(0, 1024, "cores", whole=True),
        "Cores that attend to that KV, of which stages here get none; 0: nothing is lent.",
        "2",
    ),
    Key(
        "lend_gpu_gb",
        gigabytes(4096),
        "Memory of a card that holds no stage, for KV of stages in this PC, and in confirmed ones "
        "of your LAN: the last card that device does not name, of several with auto the last.",
        "8",
    ),
    Key(
        "in_ranking",
        FLAG,
        "Whether other owners who agree, too, see this PC's name and what it gave; you see theirs.",
        "true",
    ),
)
"""Keys in the order of the file."""

_BY_NAME = {key.name: key for key in KEYS}


def limits_of(fields: Mapping[str, Any], source: str) -> OwnerLimits:
    """The limits in parsed TOML; `source` names the file in errors. Raises UserError."""
    read = {}
    for name, value in fields.items():
        key = _key(name, source)
        try:
            read[key.field] = key.kind.of_toml(value)
        except ValueError as error:
            raise _mistake(key, error, source) from None
    return OwnerLimits(**read)


def with_value(limits: OwnerLimits, name: str, text: str) -> OwnerLimits:
    """The same limits but for one key, as typed; `none` takes it back. Raises UserError."""
    key = _key(name, SET_COMMAND)
    if text.strip().lower() in UNSET:
        return replace(limits, **{key.field: key.value_in(OwnerLimits())})
    try:
        return replace(limits, **{key.field: key.kind.of_text(text.strip())})
    except ValueError as error:
        raise _mistake(key, error, SET_COMMAND) from None


def plain_limits(limits: OwnerLimits) -> dict[str, Any]:
    """The limits by key as JSON holds them: as they were written, sizes in GB."""
    return {key.name: key.kind.to_json(key.value_in(limits)) for key in KEYS}


def _key(name: str, source: str) -> Key:
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"did you mean {near[0]}?" if near else f"this version knows {', '.join(_BY_NAME)}."
    raise UserError(f"{source}: there is no limit called {name!r}: {hint}")


def _mistake(key: Key, error: ValueError, source: str) -> UserError:
    return UserError(f"{source}: {key.name} must be {key.kind.allowed}; {error}.")
