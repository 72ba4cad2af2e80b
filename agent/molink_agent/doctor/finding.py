"""One thing looked at: how it is, what was found, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Result", "fail", "ok", "skip", "warn"]


class Result(StrEnum):
    """How it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but less well than it could."""
    FAIL = "fail"
    """This PC cannot help until it is mended."""
    SKIP = "skip"
    """It cannot be looked at yet."""


@dataclass(frozen=True, slots=True)
class Finding:
    """For people and for `--json`."""

    check: str
    result: Result
    found: str
    remedy: str = ""
    """Empty where there is nothing to do."""


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Result.OK, found)


def skip(check: str, found: str) -> Finding:
    """Nothing can be said yet."""
    return Finding(check, Result.SKIP, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    """Could be better."""
    return Finding(check, Result.WARN, found, remedy)


def fail(check: str, found: str, remedy: str) -> Finding:
    """Must be mended."""
    return Finding(check, Result.FAIL, found, remedy)
