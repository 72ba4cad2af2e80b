"""Reports as plain fields, which JSON carries, and back.

Both are made of a class's annotations, once. Writing leaves a field out where it is None and None
is its default; every other field is always there.

Reading trusts nothing. A server may be older or newer than its reader, and what it repeats of nodes
was written by strangers. So a field that is missing or of another kind is None, zero or empty, as
its type says, every count is 0 or more, and every text comes out printable, in one line and
bounded. The schemas of `molink.wire` were rejected for it: they refuse a whole message for one
wrong field, as they must where the message is an order.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from molink.json_object import JsonObject
from molink.printable import printable_line

Json = Mapping[str, Any]

Read = Callable[[Any], Any]
Write = Callable[[Any], Any]

T = TypeVar("T")

NOTHING: Json = {}

JSON_NAMES = {"source": "from", "target": "to", "number": "ring"}
"""Names in JSON of fields that are called otherwise here."""

TEXT_MAX = 400
"""Characters of one text: the longest reason is a sentence or two."""

ITEMS_MAX = 20_000
"""Most items of one list: five times as many as a coordinator has nodes, or live requests."""


def json_name(name: str) -> str:
    """The name that a field has in JSON."""
    return JSON_NAMES.get(name, name)


def to_plain(report: Any) -> JsonObject:
    """Fields of a report, in their order."""
    plain: JsonObject = _object_writer(type(report))(report)
    return plain


def from_plain(of: type[T], plain: Json) -> T:
    """The report of a class that these fields tell of, as far as they do."""
    report: T = _object_reader(of)(plain)
    return report


def _new_object_writer(of: type) -> Write:
    hints = get_type_hints(of)
    known = [
        (one.name, json_name(one.name), _writer(hints[one.name]), one.default is None)
        for one in fields(of)
    ]

    def write(report: Any) -> JsonObject:
        plain: JsonObject = {}
        for name, key, write_one, is_left_out in known:
            value = getattr(report, name)
            if value is not None:
                plain[key] = value if write_one is None else write_one(value)
            elif not is_left_out:
                plain[key] = None
        return plain

    return write


def _writer(of: Any) -> Write | None:
    """A function that makes a value plain that is not None; None: it is plain as it is."""
    origin, arguments = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        return _writer(_inner(of))
    if origin is tuple and arguments[-1] is ... and is_dataclass(arguments[0]):
        write_one = _object_writer(arguments[0])
        return lambda values: [write_one(one) for one in values]
    if origin is tuple:
        return list
    if origin is Mapping:
        return dict
    return _object_writer(of) if is_dataclass(of) else None


_object_writer: Callable[[Any], Write] = cache(_new_object_writer)


def _new_object_reader(of: type) -> Read:
    hints = get_type_hints(of)
    known = [(one.name, json_name(one.name), _reader(hints[one.name])) for one in fields(of)]

    def read(plain: Any) -> Any:
        told = plain if isinstance(plain, dict) else NOTHING
        return of(**{name: read_one(told.get(key)) for name, key, read_one in known})

    return read


_object_reader: Callable[[Any], Read] = cache(_new_object_reader)


def _reader(of: Any) -> Read:
    """A function that makes a value of a plain one, whatever that is."""
    origin, arguments = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        return _optional(_inner(of))
    if origin is tuple and arguments[-1] is ...:
        return _texts if arguments[0] is str else _items(_object_reader(arguments[0]))
    if origin is tuple:
        return lambda value: _pair(value) or (0, 0)
    if origin is Mapping:
        return _mapping(_reader(arguments[1]))
    if is_dataclass(of):
        return _object_reader(of)
    return _READERS[of]


def _inner(of: Any) -> Any:
    (inner,) = (one for one in get_args(of) if one is not NoneType)
    return inner


def _optional(of: Any) -> Read:
    if is_dataclass(of):
        read = _object_reader(of)
        return lambda value: read(value) if isinstance(value, dict) and value else None
    if get_origin(of) is tuple and is_dataclass(get_args(of)[0]):
        read = _reader(of)
        return lambda value: read(value) if isinstance(value, list) else None
    return _OPTIONAL_READERS.get(get_origin(of) or of) or _reader(of)


def number(value: Any) -> float | None:
    """A finite number; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def text(value: Any) -> str:
    """A text, printable and in one line; empty where it is none."""
    return printable_line(value[:TEXT_MAX]) if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _pair(value: Any) -> tuple[int, int] | None:
    """Two whole numbers, such as a range of layers."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, last = _whole(value[0]), _whole(value[1])
    return None if first is None or last is None else (first, last)


def _texts(value: Any) -> tuple[str, ...]:
    """Texts of a list that are not empty, or the one text that stands in its place."""
    found = value if isinstance(value, list) else [value]
    return tuple(one for one in map(text, found[:ITEMS_MAX]) if one)


def objects(value: Any) -> tuple[Json, ...]:
    """Objects of a list; others in it are passed over."""
    found = value[:ITEMS_MAX] if isinstance(value, list) else ()
    return tuple(one for one in found if isinstance(one, dict))


def _items(read: Read) -> Read:
    return lambda value: tuple(map(read, objects(value)))


def _mapping(read: Read) -> Read:
    def read_all(value: Any) -> dict[str, Any]:
        found = value if isinstance(value, dict) else {}
        return {text(name): read(one) for name, one in found.items()}

    return read_all


_READERS: Mapping[Any, Read] = {
    str: text,
    int: lambda value: max(0, _whole(value) or 0),
    float: lambda value: number(value) or 0.0,
    bool: lambda value: value is True,
}
"""Readers of values that are always there."""

_OPTIONAL_READERS: Mapping[Any, Read] = {
    str: lambda value: text(value) if isinstance(value, str) else None,
    int: _whole,
    float: number,
    bool: lambda value: value if isinstance(value, bool) else None,
    tuple: _pair,
}
"""Readers of values that may be None."""
