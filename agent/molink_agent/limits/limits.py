"""What the owner of a PC lends of it.

Without limits the PC is lent as far as it does not hurt: free memory but a reserve, half of the
processor, any hour; not on battery. GB are 2**30 bytes, as on the boxes of graphics cards.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from molink.errors import UserError
from molink_agent.limits.hours import LendingHours
from molink_agent.limits.values import DEVICES, FLAG, HOURS, ValueKind, number

__all__ = ["GB", "KEYS", "Key", "Limits", "limits_of", "plain_limits", "with_value"]

GB = 2**30

UNSET = frozenset({"none", "unset", "default", ""})
"""After `set KEY`: back to what applies without a line in the file."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one owner, valid once built by `limits_of` or `with_value`; None: no cap."""

    vram_gb: float | None = None
    memory_gb: float | None = None
    upload_mbps: float | None = None
    disk_gb: float | None = None
    hours: tuple[LendingHours, ...] = ()
    only_when_idle_minutes: float | None = None
    pause_on_battery: bool = True
    threads: int | None = None
    device: str = "auto"
    direct: bool = True

    @property
    def device_names(self) -> tuple[str, ...]:
        """The lent devices by name, or ("auto",)."""
        return tuple(self.device.split(","))

    @property
    def wants_gpu(self) -> bool:
        """Whether a card is lent by its name."""
        return any(name.startswith("cuda") for name in self.device_names)

    @property
    def lends_cpu_only(self) -> bool:
        """Whether no card is lent, even where there are some."""
        return set(self.device_names) == {"cpu"}


@dataclass(frozen=True, slots=True)
class Key:
    """Limit that an owner can set: its name, what it may be, and what it means."""

    name: str
    kind: ValueKind
    meaning: str
    example: str
    """A value in TOML, shown while the key is not set."""

    @property
    def typed(self) -> str:
        """The example as it is typed after `molink agent set KEY`."""
        bare = self.example.strip("[]").replace('", "', ",").strip('"')
        return f'"{bare}"' if " " in bare else bare


KEYS = (
    Key("vram_gb", number(0, 4096, "GB"), "Memory of each graphics card, at most.", "6"),
    Key("memory_gb", number(0, 65536, "GB"), "Main memory of stages on the CPU together.", "8"),
    Key(
        "upload_mbps",
        number(0.1, 100_000, "Mbit/s"),
        "Upload, at most: everything that the agent sends counts.",
        "10",
    ),
    Key("disk_gb", number(0, 1_000_000, "GB"), "Disk for weights, at most.", "50"),
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
)
"""In the order of the file."""

_BY_NAME = {key.name: key for key in KEYS}


def limits_of(fields: Mapping[str, Any], source: str) -> Limits:
    """From parsed TOML; `source` names the file in errors. Raises UserError."""
    read = {}
    for name, value in fields.items():
        key = _key(name, source)
        try:
            read[name] = key.kind.of_toml(value)
        except ValueError as error:
            raise _mistake(key, error, source) from None
    return Limits(**read)


def with_value(limits: Limits, name: str, text: str) -> Limits:
    """The same limits but for one key, as typed; `none` takes it back. Raises UserError."""
    key = _key(name, "molink agent set")
    if text.strip().lower() in UNSET:
        return replace(limits, **{name: getattr(Limits(), name)})
    try:
        return replace(limits, **{name: key.kind.of_text(text.strip())})
    except ValueError as error:
        raise _mistake(key, error, "molink agent set") from None


def plain_limits(limits: Limits) -> dict[str, Any]:
    """The limits by key as JSON holds them; hours as they were written."""
    plain = {key.name: getattr(limits, key.name) for key in KEYS}
    return plain | {"hours": [entry.text for entry in limits.hours]}


def _key(name: str, source: str) -> Key:
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_BY_NAME)}."
    raise UserError(f"{source}: there is no limit called {name!r}: {hint}")


def _mistake(key: Key, error: ValueError, source: str) -> UserError:
    return UserError(f"{source}: {key.name} must be {key.kind.allowed}; {error}.")
