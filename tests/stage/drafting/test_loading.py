"""A head loads what drafts beside its layers, or says why not."""

from dataclasses import replace

import pytest

from molink.engine.local_engine import LocalEngine
from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from molink.stage.drafting.copying import Copying
from molink.stage.drafting.drafters import Drafters
from molink.stage.drafting.loading import add_model
from molink.stage_protocol.draft_model import TROUBLE_CHARS_MAX, DraftModel
from molink.stage_protocol.messages import LoadStage, StageWork, decode_line, encode_line
from tests.engine.recurrent.hybrids import small_model
from tests.engine.tiny_models import LAYERS, save_tiny

DRAFTER = DraftModel(str(DEMO_DRAFTER_DIR), 2, "small", kv_tokens=256)
LOAD = LoadStage(
    str(DEMO_MODEL_DIR), StageWork((0, 1), "cpu", "float32", 512), "127.0.0.1", drafter=DRAFTER
)


@pytest.fixture(scope="module")
def layers():
    return LocalEngine().prepare(LOAD, lambda fraction: None)


def drafters_of(load, layers, new_engine):
    drafters = Drafters.of(Copying())
    assert add_model(drafters, new_engine, load, layers) == drafters.trouble
    return drafters


def names(drafters):
    return [one.figures.name for one in drafters._watched]


def test_a_head_drafts_with_it_within_its_room(layers):
    held = layers.loaded.weights_bytes + layers.kv_blocks * layers.block_bytes
    drafters = drafters_of(replace(LOAD, memory_bytes=held + 8 * 2**20), layers, LocalEngine)
    assert names(drafters) == ["copy", "small"] and drafters.trouble is None
    model = drafters._watched[1].drafter
    assert model.layers.kv_blocks == 256 // 16, "what the plan has counted"


@pytest.mark.parametrize("more_bytes", [0, 2**20, 3_700_000])
def test_one_that_is_too_large_for_the_head_s_room_is_left_out(layers, more_bytes, caplog):
    """At last its weights have room, and its KV has not."""
    held = layers.loaded.weights_bytes + layers.kv_blocks * layers.block_bytes
    drafter = replace(DRAFTER, kv_tokens=512)
    load = replace(LOAD, memory_bytes=held + more_bytes, drafter=drafter)
    drafters = drafters_of(load, layers, LocalEngine)
    assert names(drafters) == ["copy"]
    assert drafters.trouble.startswith("The ring serves without the drafter small: ")
    assert caplog.messages == [drafters.trouble]


def test_one_that_is_refused_is_not_loaded_and_said_once(layers, caplog):
    why = "a\u00a0space\nof " + 500 * "words"
    load = replace(LOAD, drafter=replace(DRAFTER, refused=why))
    drafters = drafters_of(load, layers, None)
    assert caplog.messages == [], "whoever refused it has said so"
    assert drafters.trouble.isprintable() and len(drafters.trouble) == TROUBLE_CHARS_MAX
    loaded = replace(layers.loaded, port=1, drafter_trouble=drafters.trouble)
    assert decode_line(encode_line(loaded)) == loaded


def test_one_that_is_not_there_is_named(layers, tmp_path):
    load = replace(LOAD, drafter=replace(DRAFTER, model=str(tmp_path / "gone")))
    assert "gone" in drafters_of(load, layers, LocalEngine).trouble


def test_a_stage_that_becomes_the_head_loads_it_then(layers):
    middle = replace(layers, is_head=False)
    drafters = drafters_of(LOAD, middle, LocalEngine)
    assert names(drafters) == ["copy"] and drafters.trouble is None
    add_model(drafters, LocalEngine, replace(LOAD, drafter=None), layers)
    assert names(drafters) == ["copy"]
    add_model(drafters, LocalEngine, LOAD, layers)
    assert names(drafters) == ["copy", "small"]


def test_a_tail_says_whether_its_engine_has_loaded_an_assistant(layers, caplog):
    load = replace(LOAD, drafter=replace(DRAFTER, reads_from=0))
    tail = replace(layers, is_head=False, is_tail=True)
    drafting = replace(tail, loaded=replace(tail.loaded, drafts=True))
    assert drafters_of(load, drafting, None).trouble is None
    assert drafters_of(load, replace(layers, is_tail=False), None).trouble is None
    assert caplog.messages == []
    assert "could not load it" in drafters_of(load, tail, None).trouble


def torn(tmp_path):
    """A copy whose weights end too early."""
    for file in DEMO_DRAFTER_DIR.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])


def without_weights(tmp_path):
    (tmp_path / "config.json").write_bytes((DEMO_DRAFTER_DIR / "config.json").read_bytes())


@pytest.mark.parametrize("broken", [torn, without_weights])
def test_files_that_are_broken_or_missing_cost_no_ring(broken, layers, tmp_path, caplog):
    broken(tmp_path)
    load = replace(LOAD, drafter=replace(DRAFTER, model=str(tmp_path)))
    assert names(drafters_of(load, layers, LocalEngine)) == ["copy"]
    (sentence,) = caplog.messages
    assert sentence.startswith("The ring serves without the drafter small: ")


def test_one_whose_layers_keep_states_is_refused(layers, tmp_path):
    """It could not go back behind a wrong guess."""
    whole = small_model("Qwen3.5 27B")
    whole.save_pretrained(tmp_path)
    own = replace(DRAFTER, model=str(tmp_path), layers=whole.config.num_hidden_layers)
    drafters = drafters_of(replace(LOAD, drafter=own), layers, LocalEngine)
    assert names(drafters) == ["copy"] and "keep states" in drafters.trouble


def test_one_whose_layers_see_a_window_drafts(layers, tmp_path):
    save_tiny("gemma3_text", tmp_path)
    own = replace(DRAFTER, model=str(tmp_path), layers=LAYERS)
    drafters = drafters_of(replace(LOAD, drafter=own), layers, LocalEngine)
    assert names(drafters) == ["copy", "small"] and drafters.trouble is None
