"""Schemas: values come back as they were, and what does not fit is refused by the field's name."""

import json
import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal, NamedTuple

import pytest
from annotated_types import Ge, Le, MaxLen
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import FrameError
from molink.wire.kinds import Kinds
from molink.wire.schema import TAIL, Inline, Rules, Schema


class Shade(IntEnum):
    LIGHT = 0
    DARK = 1


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Pen:
    width: int
    shade: Shade = Shade.LIGHT

    def __post_init__(self) -> None:
        if self.width == 0:
            raise ValueError("a pen has a width")


@dataclass(frozen=True)
class Line:
    pen: Pen | None
    points: tuple[Point, ...]
    name: str
    tip: Literal["round", "square"]
    dashes: tuple[int, int] = (1, 1)
    closed: bool = False
    length: float = field(init=False, default=0.0)


@dataclass(frozen=True)
class Drawing:
    line: Annotated[Line, Inline(("name", "tip", "points", "pen"))]
    scale: Annotated[float, Ge(-1), Le(1)]
    layers: Annotated[tuple[int, ...], MaxLen(3)] = ()


@dataclass(frozen=True)
class Sample:
    token: int
    score: Annotated[float | None, TAIL] = None
    rivals: tuple[tuple[int, float], ...] = ()


LINE = Line(Pen(3, Shade.DARK), (Point(1.0, 2.0), Point(0.5, math.inf)), "ü", "round", (2, 3), True)
ARRAYS = Schema(Line, Rules(arrays=True))
OBJECTS = Schema(Line, Rules())
ROW = ((3, 1), ((1.0, 2.0), (0.5, math.inf)), "ü", "round", (2, 3), True)


def tuples(plain):
    return tuple(map(tuples, plain)) if isinstance(plain, list | tuple) else plain


def test_an_array_has_the_fields_in_order():
    assert tuples(ARRAYS.write(LINE)) == ROW
    assert ARRAYS.read(ROW) == LINE
    assert ARRAYS.read([list(one) if type(one) is tuple else one for one in ROW]) == LINE


def test_an_object_has_the_fields_by_name():
    plain = json.loads(json.dumps(OBJECTS.write(LINE)))
    assert list(plain) == ["pen", "points", "name", "tip", "dashes", "closed"]
    assert OBJECTS.read(plain) == LINE
    del plain["dashes"], plain["closed"]
    assert OBJECTS.read(plain).dashes == (1, 1)


def test_fields_of_a_part_stand_where_its_owner_says():
    schema = Schema(Drawing, Rules())
    drawing = Drawing(Line(None, (), "a", "square"), 1.0, (1, 2, 3))
    plain = schema.write(drawing)
    assert list(plain) == ["name", "tip", "points", "pen", "scale", "layers"]
    assert schema.read(plain) == drawing


@pytest.mark.parametrize("row", [(5,), (5, -0.5, ()), (5, -0.5, ((1, -0.5), (2, -1.0)))])
def test_an_array_ends_before_a_tail_that_is_none(row):
    schema = Schema(Sample, Rules(arrays=True))
    assert tuples(schema.write(Sample(*row))) == row
    assert schema.read(row) == Sample(*row)


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (0, (0, 1), "Line.pen: Pen: a pen has a width"),
        (0, (1, 2), "Line.pen: Pen.shade: expected one of 0, 1, got 2"),
        (0, (1, True), "Pen.shade"),
        (0, 7, "Line.pen: expected the 2 fields of a Pen, got 7"),
        (1, ((1.0,),), "Line.points: expected the 2 fields of a Point"),
        (1, ((1.0, "2"),), "Point.y: expected a number, got '2'"),
        (1, ((1.0, 10**30),), "Point.y"),
        (1, ((1.0, True),), "Point.y"),
        (1, {}, "Line.points: expected a list"),
        (2, b"a", "Line.name: expected a text"),
        (3, "flat", "Line.tip: expected one of 'round', 'square'"),
        (3, ["round"], "Line.tip"),
        (4, (1, 2, 3), "Line.dashes"),
        (4, (1, True), "Line.dashes: list.1: expected a whole number, got True"),
        (5, 1, "Line.closed: expected true or false"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(place, value, named):
    with pytest.raises(FrameError, match=named):
        ARRAYS.read((*ROW[:place], value, *ROW[place + 1 :]))


@pytest.mark.parametrize("plain", [None, 7, "abcdef", ROW[:-1], (*ROW, 1), {"pen": None}, []])
def test_another_shape_is_refused(plain):
    with pytest.raises(FrameError):
        ARRAYS.read(plain)


def test_rows_are_not_mended_from_their_neighbours():
    """Rows of two numbers of which one has three and one has one."""
    with pytest.raises(FrameError):
        ARRAYS.read((*ROW[:1], ((1.0, 2.0, 3.0), (4.0,)), *ROW[2:]))


@pytest.mark.parametrize(
    "changes",
    [{"scale": 1.5}, {"scale": math.nan}, {"scale": 10**400}, {"layers": [1, 2, 3, 4]}],
)
def test_bounds_of_an_annotation_hold(changes):
    plain = {"name": "a", "tip": "round", "points": [], "pen": None, "scale": 0}
    with pytest.raises(FrameError, match=next(iter(changes))):
        Schema(Drawing, Rules()).read(plain | changes)


def test_bounds_of_a_protocol_hold_where_no_annotation_is():
    schema = Schema(Line, Rules(least=0, most=5, text_max=2))
    good = json.loads(json.dumps(OBJECTS.write(LINE))) | {"points": [[1, 2]]}
    assert schema.read(good).points == (Point(1.0, 2.0),)
    for change in ({"points": [[1, 6]]}, {"pen": {"width": -1}}, {"name": "abc"}):
        with pytest.raises(FrameError):
            schema.read(good | change)


def test_names_are_missing_or_unknown():
    plain = json.loads(json.dumps(OBJECTS.write(LINE)))
    with pytest.raises(FrameError, match="Line has no 'colour'"):
        OBJECTS.read(plain | {"colour": 1})
    assert Schema(Line, Rules(unknown_ok=True)).read(plain | {"colour": 1}).name == "ü"
    with pytest.raises(FrameError, match="Line lacks name"):
        OBJECTS.read({key: plain[key] for key in plain if key != "name"})


def test_a_kind_is_told_by_its_name():
    kinds = Kinds({"pen": Pen, "sample": Sample}, Rules(arrays=True))
    assert kinds.write(Pen(2)) == ("pen", (2, Shade.LIGHT))
    assert kinds.read("sample", (4,)) == Sample(4)
    for name in ("Pen", "", None, ["pen"]):
        with pytest.raises(FrameError, match="unknown kind"):
            kinds.read(name, (2, 0))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=20,
)


@given(JSON)
def test_noise_is_a_value_or_a_frame_error(plain):
    for schema in (ARRAYS, OBJECTS):
        try:
            assert isinstance(schema.read(plain), Line)
        except FrameError:
            continue
