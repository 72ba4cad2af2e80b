"""Values out of a TOML table, or one sentence that says which one is wrong and what it must be."""

import math
import tomllib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink.utf8 import utf8_text

ABOVE_0 = math.ulp(0.0)
"""The least number above 0."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a file. Raises UserError, which names it as `what`, for one that is no TOML."""
    try:
        return tomllib.loads(utf8_text(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {what} {path} ({error}): give a TOML file.") from error


def refuse_unknown(where: str, table: Mapping[str, Any], known: Set[str]) -> None:
    """Raises UserError for a field that means nothing."""
    for name in sorted(table.keys() - known):
        raise UserError(f"{where} has {name}, which means nothing: take {', '.join(sorted(known))}")


def tables(where: str, data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Read a list of tables, empty if there is none. Raises UserError for anything else."""
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UserError(f"{key} of {where} must be tables: write [[{key}]] above each.")
    return found


def text(where: str, table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Read a text. Raises UserError for anything else."""
    value = table.get(key, default)
    if not isinstance(value, str):
        raise UserError(f"{key} of {where} is {value!r}: give a text.")
    return value


def number(
    where: str,
    table: Mapping[str, Any],
    key: str,
    default: float | None = None,
    *,
    least: float = 0.0,
    most: float = math.inf,
    instead: str = "",
) -> float:
    """Read a number from `least` to `most`. Raises UserError for anything else, and for none, with
    what may be given `instead`."""
    value = table.get(key, default)
    if value is None:
        raise UserError(f"{where} has no {key}: give a number{instead}.")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        raise UserError(f"{where} has {key} = {value!r}: give a number {_range(least, most)}.")
    return float(value)


def whole(
    where: str,
    table: Mapping[str, Any],
    key: str,
    default: int | None = None,
    *,
    least: int = 0,
    most: int,
) -> int:
    """Read a whole number from `least` to `most`. Raises UserError for anything else."""
    value = number(where, table, key, default, least=least, most=most)
    if value != int(value):
        raise UserError(f"{where} has {key} = {value:g}: give a whole number.")
    return int(value)


def _range(least: float, most: float) -> str:
    if least == ABOVE_0 and most == math.inf:
        return "above 0"
    if most == math.inf:
        return "" if least == -math.inf else f"from {least:g} up"
    return f"from {least:g} to {most:g}"
