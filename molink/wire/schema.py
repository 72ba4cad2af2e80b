"""Frozen dataclasses as plain fields and back: what msgpack and JSON carry, checked as annotated.

A schema is compiled once, from the annotations of a class and of those within it. Reading takes
exactly the annotated types, within bounds; then the class checks what it checks of itself. Nothing
is looked up by a name that came from outside: kinds of messages stand in an explicit table.

`msgspec` reads faster, but as arrays, without unknown names or as tagged unions only subclasses of
its own base; the core's values would have to become these. `cattrs` leaves every bound to us.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import IntEnum, StrEnum
from itertools import chain, starmap
from operator import attrgetter, call
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from annotated_types import Ge, Le, MaxLen

from molink.errors import FrameError

T = TypeVar("T")

Read = Callable[[Any], Any]
Write = Callable[[Any], Any]
Marks = tuple[Any, ...]

ARRAYS = (tuple, list)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a protocol: its form, and the bounds of values whose annotation names none."""

    arrays: bool = False
    """A dataclass is an array of its fields; else an object with their names."""
    least: float | None = None
    most: float | None = None
    """Bounds of numbers; None: any number may pass, also one that is not finite."""
    text_max: float = math.inf
    """Characters of a text, bytes of bytes."""
    unknown_ok: bool = False
    """Whether names that this version does not know are passed over, not refused."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Mark of a field whose own fields stand in its owner's object."""

    names: tuple[str, ...] = ()
    """Names of these fields, in their order; empty: all fields as they come."""


def _same(value: Any) -> Any:
    return value


def _tuple(*values: Any) -> tuple[Any, ...]:
    return values


TAIL = object()
"""Mark of a field with which an array ends early where it is None: it and all after it are left
out."""


class Schema(Generic[T]):
    """Writer and reader of the values of one class."""

    def __init__(self, of: type[T], rules: Rules) -> None:
        self.of = of
        self.write: Callable[[T], Any] = _writer(of, rules)
        """Plain fields."""
        self._read = _reader(of, rules)

    def read(self, plain: Any) -> T:
        """The value. Raises FrameError with the field that is wrong."""
        try:
            value: T = self._read(plain)
        except (ValueError, TypeError) as error:
            raise FrameError(str(error)) from None
        return value


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a class, or one item of a tuple, as far as it is written and read."""

    name: str
    of: Any
    required: bool = True

    @property
    def marks(self) -> Marks:
        """Marks that its annotation has beside the type."""
        return get_args(self.of)[1:] if get_origin(self.of) is Annotated else ()

    @property
    def inline(self) -> tuple[str, ...]:
        """Names that stand in the owner's object instead."""
        if not any(isinstance(mark, Inline) for mark in self.marks):
            return ()
        own = tuple(one.name for one in _fields_of(get_args(self.of)[0]))
        return _mark(self.marks, Inline, "names", ()) or own


def _fields_of(of: Any) -> list[_Field]:
    """Fields of a dataclass, of a named tuple, or of a `tuple[A, B]`."""
    if get_origin(of) is tuple:
        return [_Field(str(place), one) for place, one in enumerate(get_args(of))]
    hints = hints_of(of, include_extras=True)
    if not is_dataclass(of):
        return [_Field(name, hints[name]) for name in of._fields]
    return [
        _Field(one.name, hints[one.name], one.default is one.default_factory is MISSING)
        for one in fields(of)
        if one.init
    ]


def _mark(marks: Marks, kind: type, name: str, default: Any) -> Any:
    return next((getattr(mark, name) for mark in marks if isinstance(mark, kind)), default)


# -- reading ------------------------------------------------------------------------------------


def _reader(of: Any, rules: Rules, marks: Marks = ()) -> Read:
    """A function that checks one plain value and builds what it stands for."""
    origin, arguments = get_origin(of), get_args(of)
    if origin is Annotated:
        return _reader(arguments[0], rules, arguments[1:])
    if origin in (Union, UnionType):
        return _optional(of, rules, marks)
    if origin is Literal:
        return _one_of(str, {name: name for name in arguments})
    if origin is tuple and arguments[-1] is ...:
        return _items(arguments[0], rules, marks)
    if of in (int, float):
        return _number(of, rules, marks)
    if of in (str, bytes, bool):
        length_max = _mark(marks, MaxLen, "max_length", rules.text_max)
        return _exactly(of, math.inf if of is bool else length_max)
    if _is_array(of, rules):
        return _array(of, rules)
    if issubclass(of, IntEnum | StrEnum):
        plain = int if issubclass(of, IntEnum) else str
        return _one_of(plain, {member.value: member for member in of})
    return _object(of, rules)


def _is_array(of: Any, rules: Rules) -> bool:
    """Whether an array of the fields stands for it."""
    is_tuple = get_origin(of) is tuple or hasattr(of, "_fields")
    return is_tuple or (rules.arrays and is_dataclass(of))


def _is_plain(of: Any, rules: Rules) -> bool:
    """Whether a value is all right if it is exactly of this type."""
    if of is str:
        return rules.text_max == math.inf
    return of is bool or (of in (int, float) and rules.least is None)


def _refuse(expected: str, value: Any) -> ValueError:
    return ValueError(f"expected {expected}, got {shortened(value)}")


def _exactly(of: type[Any], length_max: float = math.inf) -> Read:
    expected = {int: "a whole number", str: "a text", bytes: "bytes", bool: "true or false"}[of]
    if length_max < math.inf:
        expected += f" of at most {length_max}"

    def read(value: Any) -> Any:
        if type(value) is of and (length_max == math.inf or len(value) <= length_max):
            return value
        raise _refuse(expected, value)

    return read


def _any_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < 2**64:
        return float(value)
    raise _refuse("a number", value)


def _number(of: type, rules: Rules, marks: Marks) -> Read:
    read_any = _exactly(int) if of is int else _any_float
    least, most = _mark(marks, Ge, "ge", rules.least), _mark(marks, Le, "le", rules.most)
    if least is most is None:
        return read_any
    low, high = (-math.inf if least is None else least), (math.inf if most is None else most)

    def read(value: Any) -> Any:
        number: Any = value if type(value) is of else read_any(value)
        if low <= number <= high:
            return number
        raise _refuse(f"a number from {low:g} to {high:g}", value)

    return read


def _one_of(plain: type, known: Mapping[Any, Any]) -> Read:
    def read(value: Any) -> Any:
        if type(value) is plain and value in known:
            return known[value]
        raise _refuse(f"one of {', '.join(map(repr, known))}", value)

    return read


def _optional(of: Any, rules: Rules, marks: Marks) -> Read:
    (inner,) = (one for one in get_args(of) if one is not NoneType)
    read = _reader(inner, rules, marks)
    return lambda value: None if value is None else read(value)


def _items(of: Any, rules: Rules, marks: Marks) -> Read:
    read_one, read_plain = _reader(of, rules), _plain_items(of, rules)
    most = _mark(marks, MaxLen, "max_length", math.inf)

    def read(values: Any) -> tuple[Any, ...]:
        if type(values) not in ARRAYS or len(values) > most:
            raise _refuse(f"a list of at most {most}" if most < math.inf else "a list", values)
        found = read_plain(values) if values else ()
        return tuple(map(read_one, values) if found is None else found)

    return read


def _plain_items(of: Any, rules: Rules) -> Callable[[Sequence[Any]], Iterable[Any] | None]:
    """Reads many items at once that are exactly of their plain types, as nearly all that a ring
    decodes are; None for any others."""
    if _is_plain(of, rules):
        return lambda values: values if {of}.issuperset(map(type, values)) else None
    plain = _plain_types(of, rules) if _is_array(of, rules) else None
    if plain is None:
        return lambda values: None
    build = of if isinstance(of, type) else _tuple

    def read(values: Sequence[Any]) -> Iterable[Any] | None:
        if not {tuple}.issuperset(map(type, values)):
            return None
        if tuple(map(type, chain.from_iterable(values))) != plain * len(values):
            return None
        return values if build is _tuple else starmap(build, values)

    return read


def _plain_types(of: Any, rules: Rules) -> tuple[type, ...] | None:
    """The types of all fields of a row where there is nothing else to check; None: there is."""
    found = tuple(field.of for field in _fields_of(of))
    return found if all(_is_plain(one, rules) for one in found) else None


def _array(of: Any, rules: Rules) -> Read:
    known, plain = _fields_of(of), _plain_types(of, rules)
    readers = [_reader(one.of, rules) for one in known]
    lengths = {len(known), *(place for place, one in enumerate(known) if TAIL in one.marks)}
    name, build = (of.__name__, of) if isinstance(of, type) else ("list", _tuple)

    def read(values: Any) -> Any:
        if type(values) not in ARRAYS or len(values) not in lengths:
            raise _refuse(f"the {len(readers)} fields of a {name}", values)
        try:
            return build(*map(call, readers, values))
        except ValueError as error:
            given = zip([one.name for one in known], readers, values, strict=False)
            raise _located(name, given, error) from None

    def read_plain(values: Any) -> Any:
        if type(values) is tuple and tuple(map(type, values)) == plain:
            return build(*values)
        return read(values)

    return read if plain is None else read_plain


def _object(of: Any, rules: Rules) -> Read:
    known = {field.name: field for field in _fields_of(of)}
    readers = {name: _reader(one.of, rules) for name, one in known.items()}
    required = {name for name, field in known.items() if field.required}
    inline = {name: field.inline for name, field in known.items() if field.inline}

    def read(plain: Any) -> Any:
        if type(plain) is not dict:
            raise _refuse(f"the fields of a {of.__name__}", plain)
        rest = _gathered(plain, inline) if inline else plain
        if not rest.keys() >= required:
            missing = next(name for name in known if name in required - rest.keys())
            raise ValueError(f"{of.__name__} lacks {missing}")
        if not rules.unknown_ok and (unknown := rest.keys() - known.keys()):
            raise ValueError(f"{of.__name__} has no {shortened(min(unknown))}")
        all_given = rest.keys() >= readers.keys()
        given = readers if all_given else {one: readers[one] for one in readers if one in rest}
        try:
            values = map(call, given.values(), map(rest.get, given))
            return of(**dict(zip(given, values, strict=True)))
        except ValueError as error:
            parts = ((name, one, rest[name]) for name, one in given.items())
            raise _located(of.__name__, parts, error) from None

    return read


def _gathered(plain: Mapping[str, Any], inline: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """Fields of an object, with those that stand in it for a part's put together."""
    rest = dict(plain)
    for name, names in inline.items():
        rest[name] = {one: rest.pop(one) for one in names if one in rest}
    return rest


def _located(of: str, given: Iterable[tuple[str, Read, Any]], error: ValueError) -> ValueError:
    """The same error with the field that it is of: the first that cannot be read, else all."""
    for name, read, value in given:
        try:
            read(value)
        except ValueError as found:
            return ValueError(f"{of}.{name}: {found}")
    return ValueError(f"{of}: {error}")


# -- writing ------------------------------------------------------------------------------------


def _writer(of: Any, rules: Rules) -> Write:
    """A function that makes plain fields; `_same` where the value is plain as it is."""
    origin, arguments = get_origin(of), get_args(of)
    if origin is Annotated:
        return _writer(arguments[0], rules)
    if origin in (Union, UnionType):
        (write,) = (_writer(one, rules) for one in arguments if one is not NoneType)
        return write if write is _same else lambda value: None if value is None else write(value)
    if origin is tuple and arguments[-1] is ...:
        write = _writer(arguments[0], rules)
        return write if write is _same else lambda values: list(map(write, values))
    if not is_dataclass(of):
        return _same
    return _array_writer(of, rules) if rules.arrays else _object_writer(of, rules)


def _array_writer(of: Any, rules: Rules) -> Write:
    known = _fields_of(of)
    names = [field.name for field in known]

    def few(value: Any) -> tuple[Any, ...]:
        return tuple([getattr(value, name) for name in names])

    values_of = attrgetter(*names) if len(names) > 1 else few
    tail = next((place for place, one in enumerate(known) if TAIL in one.marks), None)
    writers = [(place, _writer(one.of, rules)) for place, one in enumerate(known)]
    writers = [(place, write) for place, write in writers if write is not _same]
    if tail is not None:
        assert not writers, "an array with a TAIL holds plain values"
        return lambda value: row[:tail] if (row := values_of(value))[tail] is None else row

    def write(value: Any) -> list[Any]:
        row = list(values_of(value))
        for place, write_one in writers:
            row[place] = write_one(row[place])
        return row

    return write if writers else values_of


def _object_writer(of: Any, rules: Rules) -> Write:
    writers = [(one.name, one.inline, _writer(one.of, rules)) for one in _fields_of(of)]

    def write(value: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, inline, write_one in writers:
            written = write_one(getattr(value, name))
            if inline:
                plain |= {one: written[one] for one in inline}
            else:
                plain[name] = written
        return plain

    return write
