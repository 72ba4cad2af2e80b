"""The catalogue: each entry's facts against its published count, and against what is served."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from molink.checkpoint.catalogue.entries import catalogue, catalogue_entry
from molink.checkpoint.layer_sizes import planned_model
from molink.errors import UserError

SERVED = [one for one in catalogue() if not one.refused]
PARTS = re.compile("qwen3.5|qwen3.6|qwen3-next|gemma|glm-4.7|devstral")
"""Models that are published with what sees, hears or drafts, which no stage holds."""

TRIALS = {
    one["name"]: one
    for one in json.loads(
        (Path(__file__).parents[2] / "tools/models_page/results.json").read_text(encoding="utf-8")
    )["trials"]
}


def test_it_is_forty_models_of_two_years():
    assert len(SERVED) >= 40
    assert all(date(2025, 1, 1) <= date.fromisoformat(one.released) for one in catalogue())
    assert len({one.name for one in catalogue()}) == len(catalogue())


@pytest.mark.parametrize("entry", SERVED, ids=lambda one: one.name)
def test_settings_make_the_published_parameters(entry):
    made = entry.shape(entry.formats[0]).parameters / entry.parameters
    assert (0.89 if PARTS.match(entry.name) else 0.999) <= made <= 1.02


@pytest.mark.parametrize("entry", catalogue(), ids=lambda one: one.name)
def test_it_says_whence_and_whether_the_family_is_served(entry):
    assert re.search(r"20\d\d-\d\d", entry.source)
    tried = TRIALS[entry.config["model_type"]]
    assert entry.refused == ("" if tried["served"] else tried["why"])


def test_sizes_are_those_of_the_formats():
    entry = catalogue_entry("Qwen/Qwen3-32B")
    sizes = [entry.download_bytes(form) / 1e9 for form in entry.formats]
    assert entry.formats == ("16 bits", "8 bits", "4 bits")
    assert sizes == [pytest.approx(65.5, rel=0.01), pytest.approx(34.3, rel=0.01), sizes[2]]
    assert 19 < sizes[2] < 21
    gpt_oss = catalogue_entry("gpt-oss-20b")
    assert gpt_oss.formats == ("MXFP4",)
    assert gpt_oss.active_parameters == pytest.approx(3.6e9, rel=0.02)


def test_a_plan_takes_its_names():
    assert planned_model("Gemma-3-27B").shape.layers == 62
    with pytest.raises(UserError, match="Llama 4 Scout 109B-A17B is not served: Llama4"):
        planned_model("llama-4-scout")


def test_an_unknown_name_gets_the_nearest(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"`molink models` lists known names, nearest is qwen3-32b"):
        planned_model("qwen3-32x")
    with pytest.raises(UserError, match=r"`molink models` lists known names$"):
        planned_model("zzzzzz")
