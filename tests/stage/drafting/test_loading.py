"""A model that cannot draft is named in one sentence, and the ring serves without."""

import logging
from dataclasses import replace

import pytest

from molink.engine.local_engine import LocalEngine
from molink.stage.drafting.loading import drafters_of
from molink.stage_protocol.messages import DraftModel, LoadStage, StageWork
from molink_scheduler.drafting.asks import DraftAsk
from molink_scheduler.request import SamplingParams
from tests.engine.recurrent.hybrids import small_model
from tests.engine.tiny_models import LAYERS, save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    save_tiny("llama", directory := tmp_path_factory.mktemp("model"))
    return directory


@pytest.fixture(scope="module")
def layers(folder):
    """Layers of a head, loaded."""
    work = StageWork((0, LAYERS), "cpu", "float32", 256)
    return LocalEngine().prepare(LoadStage(str(folder), work, "127.0.0.1"), lambda _: None)


def load_with(folder, drafter=None, of_drafter=LAYERS, **more) -> LoadStage:
    work = StageWork((0, LAYERS), "cpu", "float32", 256)
    named = None if drafter is None else DraftModel(str(drafter), of_drafter, "small")
    return LoadStage(str(folder), work, "127.0.0.1", drafter=named, **more)


def guesses(drafters) -> tuple[int, ...]:
    """What is answered about a text that repeats nothing."""
    params = SamplingParams(max_tokens=9, temperature=0.0)
    drafters.ask((DraftAsk(1, 0, (5, 17, 23, 8), params, 3),))
    while (answered := drafters.take()) is None:
        assert drafters.is_busy
    return answered.drafts[0].token_ids


def test_a_small_model_drafts_beside_copying(folder, layers, caplog):
    drafters = drafters_of(load_with(folder, folder), layers, LocalEngine)
    assert len(guesses(drafters)) == 3
    assert caplog.messages == []


def test_who_names_none_or_is_no_head_copies(folder, layers):
    behind = replace(layers, is_head=False)
    assert guesses(drafters_of(load_with(folder), layers, LocalEngine)) == ()
    assert guesses(drafters_of(load_with(folder, folder), behind, LocalEngine)) == ()


def torn(folder, tmp_path):
    """A copy whose weights end too early."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = sorted(tmp_path.glob("*.safetensors"))[1]
    weights.write_bytes(weights.read_bytes()[:-50])
    return tmp_path


def without_weights(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    return tmp_path


@pytest.mark.parametrize("broken", [torn, without_weights])
def test_files_that_are_broken_or_missing_cost_no_ring(broken, folder, layers, tmp_path, caplog):
    drafter = broken(folder, tmp_path)
    with caplog.at_level(logging.WARNING):
        drafters = drafters_of(load_with(folder, drafter), layers, LocalEngine)
    assert guesses(drafters) == ()
    (sentence,) = caplog.messages
    assert sentence.startswith("The ring serves without the drafter small: ")


@pytest.mark.parametrize("more_bytes", [0, 1])
def test_a_model_that_finds_no_room_beside_the_layers_costs_no_ring(
    more_bytes, folder, layers, caplog
):
    """None at all is left, or too little for its weights."""
    held = layers.loaded.weights_bytes + layers.kv_blocks * layers.block_bytes
    load = load_with(folder, folder, memory_bytes=held + more_bytes)
    with caplog.at_level(logging.WARNING):
        drafters = drafters_of(load, layers, LocalEngine)
    assert guesses(drafters) == ()
    (sentence,) = caplog.messages
    assert "The ring serves without the drafter small: " in sentence


def test_a_model_whose_layers_keep_states_is_refused(folder, layers, tmp_path, caplog):
    """It could not go back behind a wrong guess."""
    whole = small_model("Qwen3.5 27B")
    whole.save_pretrained(tmp_path)
    load = load_with(folder, tmp_path, whole.config.num_hidden_layers)
    with caplog.at_level(logging.WARNING):
        drafters = drafters_of(load, layers, LocalEngine)
    assert guesses(drafters) == ()
    (sentence,) = caplog.messages
    assert "keep states" in sentence


def test_a_model_whose_layers_see_a_window_drafts(layers, tmp_path, caplog):
    save_tiny("gemma3_text", tmp_path)
    drafters = drafters_of(load_with(layers, tmp_path), layers, LocalEngine)
    assert len(guesses(drafters)) == 3
    assert caplog.messages == []
