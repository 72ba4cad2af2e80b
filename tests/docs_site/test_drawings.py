"""Diagrams of the documents: what is committed is what the script draws, and can be read."""

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from tests.docs_site.pages import PAGES
from tools.drawings import DRAWINGS, IMAGES, Box, Drawing, Label, Line, box_labels, draw

WIDE = 7.6
"""Pixels of a letter, in the widest of the fonts that browsers take."""

TELEPHONE = 360
LETTERS_MIN = 9
"""Pixels of the smallest letters, where the picture is as wide as a telephone's page."""

Area = tuple[float, float, float, float]


def area(label: Label) -> Area:
    """Left, top, right and bottom of a label."""
    width = WIDE * len(label.text)
    left = label.x - width * {"start": 0, "middle": 0.5, "end": 1}[label.anchor]
    return left, label.y - 11, left + width, label.y + 3


def overlap(one: Area, other: Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def labels(drawing: Drawing) -> list[Label]:
    own = [part for part in drawing.parts if isinstance(part, Label)]
    boxes = [part for part in drawing.parts if isinstance(part, Box)]
    return own + [label for box in boxes for label, _ in box_labels(box)]


def segments(drawing: Drawing) -> list[Area]:
    """Each straight part of each line, as an area without width."""
    lines = [part.points for part in drawing.parts if isinstance(part, Line)]
    pairs = [pair for points in lines for pair in pairwise(points)]
    return [
        (min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y)) for (x, y), (to_x, to_y) in pairs
    ]


def unreadable(drawing: Drawing) -> list[str]:
    """Labels that touch another one, a line or the picture's edge, or are wider than their box."""
    areas = [(label.text, area(label)) for label in labels(drawing)]
    found = [f"{one}, {other}" for (one, a), (other, b) in combinations(areas, 2) if overlap(a, b)]
    found += [text for text, a in areas if any(overlap(a, line) for line in segments(drawing))]
    found += [
        text for text, a in areas if a[0] < 0 or a[2] > drawing.width or a[3] > drawing.height
    ]
    for box in drawing.parts:
        if isinstance(box, Box):
            found += [text for text in box.text if WIDE * len(text) > box.width]
    return found


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_picture_is_what_the_script_draws(drawing):
    assert (IMAGES / f"{drawing.name}.svg").read_text(encoding="utf-8") == draw(drawing)


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_picture_can_be_read(drawing):
    assert unreadable(drawing) == []
    assert 13 * TELEPHONE / drawing.width >= LETTERS_MIN
    ElementTree.fromstring(draw(drawing))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_page_shows_it_and_says_what_it_shows(drawing):
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    shown = [re.findall(rf"!\[([^\]]+)\]\(\S*images/{drawing.name}\.svg\)", one) for one in texts]
    assert any(shown)


def test_what_overlaps_is_noticed():
    line = Line(((0, 50), (100, 50)))
    assert unreadable(Drawing("x", 100, 100, "", (Label(10, 55, "under"), line))) == ["under"]
    two = (Label(10, 20, "one"), Label(30, 20, "other"))
    assert unreadable(Drawing("x", 100, 100, "", two)) == ["one, other"]
    assert unreadable(Drawing("x", 100, 100, "", (Box(0, 0, 40, 40, ("long words",)),))) != []
    assert unreadable(Drawing("x", 100, 100, "", (Label(90, 20, "edge"),))) == ["edge"]
