"""limits.toml: read, changed by `molink agent set`, and noticed when somebody edits it.

It is written whole, each key with its meaning above it, keys that are not set as comments: the
file is its own manual, and the same limits are always the same text. A library that keeps the
owner's own comments was rejected: a dependency for the sake of a file of ten lines.

A file that was broken while the agent runs changes nothing: the limits that were read last still
hold, and `problem` says what is wrong.
"""

import contextlib
import os
import tomllib
from pathlib import Path

from molink.errors import UserError
from molink_agent.limits.limits import KEYS, Key, OwnerLimits, limits_of, with_value

LIMITS_FILE = "limits.toml"
"""Name of the file in the agent's data directory."""

FILE_BYTES_MAX = 65_536
"""Ours has under 2 KB; a larger one is something else."""

HEAD = """\
# What this PC lends. The agent notices changes within seconds; `molink agent set KEY VALUE`
# writes this file anew, without comments of your own. A line with # in front is not set.
"""

SET_AGAIN = "correct it, or remove it and set your limits again"


def limits_text(limits: OwnerLimits) -> str:
    """The whole text of a limits file."""
    return HEAD + "".join(_entry(key, limits) for key in KEYS)


class LimitsFile:
    """The limits file of one agent, and what was last read of it."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / LIMITS_FILE
        self.limits = OwnerLimits()
        """OwnerLimits as last read."""
        self.problem = ""
        """Fault of the file as it is now; empty: none."""
        self._stamp: tuple[int, ...] | None = None

    def read(self) -> OwnerLimits:
        """Read the file; without it the defaults hold. Raises UserError for a wrong file."""
        self._stamp = self._stamp_now()
        self.limits = self._parse()
        self.problem = ""
        return self.limits

    def reload(self) -> bool:
        """Read the file if it was touched since; True when the limits have changed. Never raises: a
        mistake is in `problem`."""
        if self._stamp_now() == self._stamp:
            return False
        before = self.limits
        try:
            return self.read() != before
        except UserError as error:
            self.problem = str(error)
            return False

    def set(self, name: str, text: str) -> OwnerLimits:
        """Change one key as typed and write the file. Raises UserError, and then nothing was
        changed."""
        changed = with_value(self.read(), name, text)
        self.write(changed)
        return changed

    def write(self, limits: OwnerLimits) -> None:
        """Replace the file; a reader finds the old content or the new. Raises UserError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(limits_text(limits))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise UserError(f"{self.path} cannot be written: {error.strerror}.") from None
        self.limits, self.problem = limits, ""
        self._stamp = self._stamp_now()

    def _stamp_now(self) -> tuple[int, ...] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _parse(self) -> OwnerLimits:
        try:
            with self.path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return OwnerLimits()
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be read ({error.strerror}): check its owner."
            ) from None
        if len(data) > FILE_BYTES_MAX:
            raise UserError(f"{self.path} is too large for limits: remove it to start anew.")
        try:
            text = data.decode("utf-8")
            _refuse_cut(text)
            return limits_of(tomllib.loads(text), str(self.path))
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{self.path} is not valid TOML ({error}): {SET_AGAIN}.") from None
        except UnicodeDecodeError:
            raise UserError(f"{self.path} is not UTF-8 text: {SET_AGAIN}.") from None


def _refuse_cut(text: str) -> None:
    """Raise TOMLDecodeError for less than we have written: more would be lent than was said."""
    if text.startswith(HEAD[: len(text)]) and not text.endswith("\n"):
        raise tomllib.TOMLDecodeError("its end is missing")


def _entry(key: Key, limits: OwnerLimits) -> str:
    value = key.value_in(limits)
    line = f"{key.name} = {key.example}"
    if value == key.value_in(OwnerLimits()):
        return f"\n# {key.meaning}\n# {line}\n"
    return f"\n# {key.meaning}\n{key.name} = {key.kind.to_toml(value)}\n"
