"""A model drafts where its layers can go back behind a wrong guess; else a ring serves without."""

import logging
from types import SimpleNamespace

import pytest

from molink.engine.local_engine import LocalEngine
from molink.stage.drafting.loading import drafters_of
from molink.stage_protocol.messages import DraftModel, LoadStage, StageWork
from tests.engine.recurrent.hybrids import small_model
from tests.engine.tiny_models import LAYERS, save_tiny


def names_of(tmp_path, layers=LAYERS):
    """Drafters of a head that is to load the model there."""
    work = StageWork((0, 1), "cpu", "float32", 1024)
    load = LoadStage("target", work, "127.0.0.1", drafter=DraftModel(str(tmp_path), layers, "own"))
    here = SimpleNamespace(device="cpu", weights_bytes=0)
    head = SimpleNamespace(is_head=True, kv_blocks=64, block_bytes=1, loaded=here)
    return [one.drafter.name for one in drafters_of(load, head, LocalEngine)._watched]


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_whole_layers_and_windows_go_back(kind, tmp_path):
    save_tiny(kind, tmp_path)
    assert names_of(tmp_path) == ["copy", "own"]


def test_states_do_not_and_one_sentence_says_so(tmp_path, caplog):
    hybrid = small_model("LFM2 1.2B")
    hybrid.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert names_of(tmp_path, hybrid.config.num_hidden_layers) == ["copy"]
    assert "serves without the drafter own: its layers keep states" in caplog.text
