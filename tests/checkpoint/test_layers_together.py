"""Which layers stay on one stage, by config.json alone and as the library's classes have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.checkpoint.draft_layer import sources_of
from molink.checkpoint.layers_together import check_cuts, layers_together, tied_from
from molink.checkpoint.model_config import model_shape
from molink.errors import UserError
from tools.models_page.published import PUBLISHED


def published(name):
    one = next(one for one in PUBLISHED if one.name == name)
    return AutoConfig.for_model(one.model_type, **one.settings)


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("Gemma 4 E2B", ((13, 35),)),
        ("Gemma 4 E4B", ((22, 42),)),
        ("Gemma 3n E4B", ((0, 35),)),
        ("Gemma 4 31B", ()),
        ("Qwen3.5 27B", ()),
    ],
)
def test_published_models(name, together, tmp_path):
    config = published(name)
    config.save_pretrained(tmp_path)
    assert describe(str(tmp_path)).together == together
    shape = model_shape(tmp_path)
    assert shape.together == shape.cost.together == together


@pytest.mark.parametrize(
    ("name", "layers", "tied"),
    [("Gemma 4 E2B", 35, ((13, 35),)), ("Gemma 4 31B", 60, ((58, 60),))],
)
def test_layers_that_an_assistant_reads_stay_together(name, layers, tied, tmp_path):
    published(name).save_pretrained(tmp_path)
    described = describe(str(tmp_path))
    sources = sources_of(open_checkpoint(str(tmp_path)).config())
    assert tied_from(described.together, min(sources.values()), layers) == tied
    assert tied_from(((0, 3), (5, 8)), 6, 9) == ((0, 3), (5, 9))
    assert tied_from(((0, 3),), 8, 9) == ((0, 3),)


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_no_layer_reads_what_another_stage_has_stored(own, sharing, data):
    """The rule of the library's classes: who shares reads the last layer of its kind before all."""
    kinds = [data.draw(st.sampled_from("ab")) for _ in range(own + sharing)]
    layers = len(kinds)
    config = {"layer_types": kinds, "num_kv_shared_layers": sharing}
    runs = layers_together(config, layers)
    for reader in range(own, layers):
        stored = [n for n in range(own) if kinds[n] == kinds[reader]]
        for cut in range(1, layers):
            parts = not stored or stored[-1] < cut <= reader
            if parts and stored:
                assert any(start < cut < end for start, end in runs)
    for start, _ in runs:
        kind_is_read = kinds[start] in kinds[own:] or not set(kinds[own:]) <= set(kinds[:own])
        assert kind_is_read or start == 0


@pytest.mark.parametrize(
    "config",
    [{}, {"num_kv_shared_layers": 0}, {"num_kv_shared_layers": None}, {"altup_num_inputs": 1}],
)
def test_most_models_may_be_cut_anywhere(config):
    assert layers_together(config, 4) == ()


def test_where_it_is_not_told_who_reads_whom_nothing_is_cut():
    assert layers_together({"num_kv_shared_layers": 2}, 4) == ((0, 4),)
    assert layers_together({"num_kv_shared_layers": 2, "layer_types": ["a"]}, 4) == ((0, 4),)


@pytest.mark.parametrize(
    ("together", "ranges", "says"),
    [
        (((3, 6),), [(0, 4), (4, 6)], "layers 3 to 5 of m share keys.*at layer 3 or before"),
        (((3, 6),), [(4, 5)], "so it cannot be cut at layer 4"),
        (((0, 3),), [(0, 2), (2, 6)], "at layer 3 or behind"),
        (((0, 6),), [(0, 2), (2, 6)], "give all 6 layers to one stage"),
    ],
)
def test_a_cut_among_them_is_refused_with_where_to_cut(together, ranges, says):
    with pytest.raises(UserError, match=says):
        check_cuts("m", 6, together, ranges)


def test_cuts_beside_them_are_fine():
    check_cuts("m", 6, ((3, 6),), [(0, 1), (1, 3), (3, 6)])
