"""The README's first screen: short, and with a picture that shows what was recorded."""

import json
import re
from xml.etree import ElementTree

import pytest

from tests.docs_site.pages import ROOT
from tools.lost_pc import draw

IMAGES = ROOT / "docs" / "images"
WORDS_MAX = 120
LINES_MAX = 30


def recorded() -> list[dict[str, object]]:
    lines = (IMAGES / "lost_pc.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_picture_is_drawn_from_the_recording():
    assert (IMAGES / "lost-pc.svg").read_text(encoding="utf-8") == draw(recorded())


def test_the_picture_shows_the_whole_answer_and_loads_nothing():
    picture = ElementTree.fromstring(draw(recorded()))
    answer = "".join(str(line.get("text", "")) for line in recorded())
    shown = " ".join("".join(picture.itertext()).split())
    assert " ".join(answer.split()) in shown
    assert not re.search(r"https?://(?!www\.w3\.org)|<script", draw(recorded()))


def test_an_answer_goes_on_after_the_loss():
    kinds = [line.get("event") or next(iter({*line} - {"at_s"})) for line in recorded()]
    killed = kinds.index("killed")
    assert "ring_resumed" in kinds[killed:] and "text" in kinds[kinds.index("ring_resumed") :]


def test_the_first_screen_is_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = readme.partition("## How it compares")[0]
    seen = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", first, flags=re.DOTALL)
    assert len(re.findall(r"\w[\w'.:/-]*", seen)) <= WORDS_MAX


@pytest.mark.parametrize("role", ["Use it", "Lend a PC", "Run a cluster"])
def test_each_role_has_a_quick_start_of_a_screen(role):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition(f"\n## {role}\n")[2].partition("\n## ")[0]
    assert 0 < len(section.splitlines()) <= LINES_MAX and "```" in section and "![" not in section
