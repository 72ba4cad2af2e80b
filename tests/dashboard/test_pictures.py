"""Pictures of the documents are what the dashboard draws: each at a moment of a recording."""

import asyncio
import html
import re
from pathlib import Path

import pytest

from molink.dashboard.recording import Recording
from tools.experiments.dashboard.pictures import PICTURES, draw

IMAGES = Path(__file__).parents[2] / "docs" / "images"

ANEW = """\
The screen has changed. Look at it, and if it is meant so:
    python -m tools.experiments.dashboard.pictures --out docs/images
"""


@pytest.fixture(scope="module")
def recording():
    return Recording.open(IMAGES / "node_loss.jsonl.gz")


def texts(svg):
    """What a picture says, for a difference that can be read."""
    return [html.unescape(one) for one in re.findall(r"<text [^>]*>([^<]*)</text>", svg)]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_is_drawn(recording, name):
    drawn = asyncio.run(draw(recording, PICTURES[name], name))
    kept = (IMAGES / f"dashboard-{name}.svg").read_text(encoding="utf-8")
    assert texts(drawn) == texts(kept), ANEW
    assert drawn == kept, ANEW


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_fetches_nothing(name):
    svg = (IMAGES / f"dashboard-{name}.svg").read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)|<image|<script|font-face", svg)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ring", "Nothing stands out."),
        ("slow", "ben is"),
        ("lost", "carl was lost"),
        ("recovered", "serving"),
        ("nodes", "has become slow"),
        ("events", "carl is lost"),
    ],
)
def test_the_moments_show_what_they_are_for(name, says):
    svg = (IMAGES / f"dashboard-{name}.svg").read_text(encoding="utf-8")
    assert says in " ".join(texts(svg)).replace("\xa0", " ")
