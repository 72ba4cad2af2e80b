"""Pictures of the documents are what the dashboard draws: each at a moment of a recording."""

import asyncio
import html
import re
from pathlib import Path

import pytest

from molink.dashboard.model.history import History
from molink.dashboard.recording import DashboardRecording
from tools.experiments.dashboard.pictures import PICTURES, draw
from tools.experiments.dashboard.slow_pc import NAMING

IMAGES = Path(__file__).parents[2] / "docs" / "images"

SLOWED_S = (20.0, 60.0)
"""When stage 3 was slow in the recording of slow_pc, as that script has told."""

ANEW = """\
The screen has changed. Look at it, and if it is meant so:
    python -m tools.experiments.dashboard.pictures --out docs/images
"""


def texts(svg):
    """What a picture says, for a difference that can be read."""
    return [html.unescape(one) for one in re.findall(r"<text [^>]*>([^<]*)</text>", svg)]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_is_drawn(name):
    recording = DashboardRecording.open(IMAGES / f"{PICTURES[name].recording}.jsonl.gz")
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
        ("found", "stage 3 is"),
        ("request", "tokens of the prompt: 0-"),
    ],
)
def test_the_moments_show_what_they_are_for(name, says):
    svg = (IMAGES / f"dashboard-{name}.svg").read_text(encoding="utf-8")
    assert says in " ".join(texts(svg)).replace("\xa0", " ")


def named_after(recording, opened_at_s, ended_at_s):
    """What is named as slow to one who opens the dashboard then: names, and after how long."""
    history, named = History(), {}
    for index, at_s in enumerate(recording.times_s):
        if opened_at_s <= at_s <= ended_at_s:
            history.take(recording.observation(index))
            for one in history.findings:
                if one.kind in NAMING:
                    named.setdefault(one.subject, at_s - opened_at_s)
    return named


def test_a_new_operator_finds_the_slowed_pc_within_ten_seconds_and_no_other():
    recording = DashboardRecording.open(IMAGES / "slow_pc.jsonl.gz")
    began_s, ended_s = recording.times_s[0] + SLOWED_S[0], recording.times_s[0] + SLOWED_S[1]
    assert named_after(recording, recording.times_s[0], began_s) == {}
    for opened_s in range(0, 30, 5):
        (one,) = named_after(recording, began_s + opened_s, ended_s).items()
        assert one[0] == "stage 3" and one[1] < 10
