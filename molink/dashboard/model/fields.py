"""Fields of a JSON answer, read without trusting it.

A server may be older or newer than the dashboard, and what it repeats of nodes was written by
strangers. So a field that is missing or of another kind is None or empty, and every text comes out
printable, in one line and bounded.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from molink.printable import printable_line

Json = Mapping[str, Any]

TEXT_MAX = 400
"""Characters of one text: the longest reason is a sentence or two."""

OBJECTS_MAX = 20_000
"""Most objects of one list: five times as many as a coordinator has nodes, or live requests."""

NOTHING: Json = {}


def number(body: Json, name: str) -> float | None:
    """A finite number; None: there is none."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(body: Json, name: str) -> int:
    """A whole number that is not negative; 0 where there is none."""
    return max(0, int(number(body, name) or 0))


def text(body: Json, name: str) -> str:
    """A text, printable and in one line; empty where there is none."""
    value = body.get(name)
    return printable_line(value[:TEXT_MAX]) if isinstance(value, str) else ""


def flag(body: Json, name: str) -> bool:
    """Whether a field is true."""
    return body.get(name) is True


def part(body: Json, name: str) -> Json:
    """An object within; an empty one where there is none."""
    value = body.get(name)
    return value if isinstance(value, dict) else NOTHING


def objects(body: Json, name: str) -> Iterator[Json]:
    """Objects of a list; others in it are passed over."""
    value = body.get(name)
    found = value[:OBJECTS_MAX] if isinstance(value, list) else []
    return (one for one in found if isinstance(one, dict))


def texts(body: Json, name: str) -> tuple[str, ...]:
    """Texts of a list that are not empty, or the one text that stands in its place."""
    value = body.get(name)
    found = value if isinstance(value, list) else [value]
    cleaned = (text({"": one}, "") for one in found[:OBJECTS_MAX])
    return tuple(one for one in cleaned if one)


def pair(body: Json, name: str) -> tuple[int, int] | None:
    """Two whole numbers, such as a range of layers."""
    value = body.get(name)
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, last = number({"": value[0]}, ""), number({"": value[1]}, "")
    return None if first is None or last is None else (int(first), int(last))
