"""A model drafts for another where its words are the same, and is named where they are not."""

import json
import logging
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from molink.serving.drafter import draft_model, first_difference, tail_drafts
from molink.serving.foreign_drafters import foreign_kind
from molink.serving.served_model import read_served_model
from tests.checkpoint.drafting_checkpoints import with_nextn
from tests.engine.drafting.assistant_checkpoints import SETTINGS, SOURCES, save_assisted
from tests.engine.drafting.tail_checkpoints import change_tensors
from tests.engine.tiny_models import save_tiny


@dataclass
class Words:
    words: tuple[str, ...]

    def get_vocab(self):
        return {word: id_ for id_, word in enumerate(self.words) if word}


@pytest.mark.parametrize(
    ("one", "other", "first"),
    [
        (("a", "b", "c"), ("a", "b", "c"), None),
        (("a", "b", "c"), ("a", "b", "c", "<pad 1>", "<pad 2>"), None),
        (("a", "b", "c", "<pad>"), ("a", "b", "c"), None),
        (("a", "b", "c"), ("a", "x", "c"), 1),
        (("a", "b", "c"), ("a", "", "c"), 1),
        (("", "b"), ("a", "b"), 0),
        (("a",), (), None),
    ],
)
def test_words_are_compared_up_to_the_last_that_both_could_have(one, other, first):
    assert first_difference(Words(one), Words(other)) == first


@pytest.fixture(scope="module")
def served():
    return read_served_model("demo", None)


@pytest.mark.parametrize("drafter", ["none", "copy", "auto", "tail"])
def test_what_is_no_path_names_no_model(served, drafter):
    assert draft_model(drafter, served) is None


def test_a_model_of_the_same_words_drafts(served, caplog):
    found = draft_model(str(DEMO_MODEL_DIR), served)
    assert (found.model, found.layers) == (str(DEMO_MODEL_DIR), served.description.layers)
    assert found.name == DEMO_MODEL_DIR.name
    assert caplog.messages == []


def test_the_first_other_word_is_named(served, caplog):
    vocabulary = served.card.tokenizer.get_vocab()
    others = {word: id_ if id_ != 77 else 10**6 for word, id_ in vocabulary.items()}
    card = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: others))
    with caplog.at_level(logging.WARNING):
        refused = draft_model(str(DEMO_MODEL_DIR), SimpleNamespace(card=card))
    (sentence,) = caplog.messages
    assert sentence == refused.trouble
    assert "token 77" in sentence
    assert "serves without the drafter demo:" in sentence


def test_a_folder_that_holds_no_model_is_named_and_costs_no_ring(served, caplog, tmp_path):
    (tmp_path / "config.json").write_text("{")
    for path in (tmp_path, tmp_path / "none"):
        assert draft_model(str(path), served).refused
    assert len(caplog.messages) == 2
    assert str(tmp_path) in caplog.messages[0]


def test_without_a_tokenizer_no_words_are_known(served, caplog):
    bare = SimpleNamespace(card=SimpleNamespace(tokenizer=None))
    assert draft_model(str(DEMO_MODEL_DIR), bare).refused
    assert "tokenizer" in caplog.messages[0]


def test_a_drafter_without_a_tokenizer_has_the_models_words(served, caplog):
    with caplog.at_level(logging.INFO, logger="molink.serving.drafter"):
        assert draft_model(str(DEMO_DRAFTER_DIR), served).layers == 2
    (sentence,) = caplog.messages
    assert "no tokenizer" in sentence and "demo_drafter" in sentence


def test_without_a_tokenizer_it_needs_as_many_words(served, caplog, tmp_path):
    save_tiny("llama", tmp_path, "float32")
    assert draft_model(str(tmp_path), served).refused
    assert f"160 words where the model has {served.description.vocabulary_size}" in caplog.text


def test_two_without_a_tokenizer_need_as_many_words(caplog, tmp_path):
    for name, words in (("one", 0), ("other", 1)):
        save_tiny("llama", tmp_path / name, "float32", vocab_size=160 + words)
    bare = read_served_model(str(tmp_path / "one"), None)
    assert not draft_model(str(tmp_path / "one"), bare).refused
    assert draft_model(str(tmp_path / "other"), bare).refused
    assert "161 words where the model has 160" in caplog.messages[0]


EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
SPECULATORS = {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}
NAMED = {"speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "m"}}}
DFLASH = {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 17, 33]}}


@pytest.mark.parametrize("config", [EAGLE3, SPECULATORS, NAMED, DFLASH])
def test_drafters_that_read_several_stages_are_refused_with_the_reason(
    served, caplog, tmp_path, config
):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert draft_model(str(tmp_path), served).refused
    (sentence,) = caplog.messages
    assert "three hidden" in sentence or "hidden states of three layers" in sentence
    assert "every row on every hop" in sentence
    assert "serves without" in sentence


def test_kinds_of_drafters():
    kinds = [foreign_kind(one) for one in (EAGLE3, SPECULATORS, NAMED, DFLASH)]
    assert kinds == ["EAGLE-3", "EAGLE-3", "EAGLE-3", "DFlash"]
    assert foreign_kind({"architectures": ["LlamaForCausalLMEagle"]}) == "EAGLE"
    assert foreign_kind({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) is None


@pytest.mark.parametrize("target", SETTINGS)
def test_an_assistant_of_gemma_drafts_on_the_tail(target, caplog, tmp_path):
    save_assisted(target, tmp_path)
    found = draft_model(str(tmp_path / "assistant"), read_served_model(str(tmp_path), None))
    assert (found.reads_from, found.layers, found.refused) == (SOURCES[target], 3, "")


@pytest.mark.parametrize(
    ("settings", "of_text", "said"),
    [
        (dict(backbone_hidden_size=96), {}, "made for a model of width 96, and this one's is 64"),
        ({}, dict(vocab_size=161), "161 words where the model has 160"),
    ],
)
def test_an_assistant_of_another_model_is_named(settings, of_text, said, caplog, tmp_path):
    save_assisted("plain", tmp_path, of_text=of_text, **settings)
    found = draft_model(str(tmp_path / "assistant"), read_served_model(str(tmp_path), None))
    assert found.refused and found.reads_from is None, "the head says why"
    assert said in found.trouble and found.trouble in caplog.messages


def test_an_assistant_of_gemma_drafts_for_gemma_alone(served, tmp_path):
    save_assisted("plain", tmp_path)
    refused = draft_model(str(tmp_path / "assistant"), served)
    assert "assistant of Gemma 4, and the model is of type" in refused.trouble


def test_half_an_assistant_is_named(tmp_path):
    save_assisted("plain", tmp_path)
    lost = "model.layers.1.mlp.up_proj.weight"
    change_tensors(tmp_path / "assistant", lambda all_: {k: all_[k] for k in all_ if k != lost})
    model = read_served_model(str(tmp_path), None)
    assert f"lacks {lost}" in draft_model(str(tmp_path / "assistant"), model).trouble


def test_a_layer_of_the_checkpoint_drafts_on_the_tail(caplog, tmp_path):
    model = with_nextn(tmp_path)
    found = [tail_drafts(one, model) for one in ("tail", "auto", "copy", "none")]
    assert found == [(True, ""), (True, ""), (False, ""), (False, "")]
    assert caplog.messages == []


def test_a_layer_that_is_half_there_is_named_and_costs_no_ring(caplog, tmp_path):
    model = with_nextn(tmp_path, lost=("hnorm.weight",))
    drafts, trouble = tail_drafts("auto", model)
    (sentence,) = caplog.messages
    assert (drafts, trouble) == (False, sentence)
    assert "hnorm.weight" in sentence and "serves without" in sentence


def test_a_checkpoint_without_one_is_named_where_it_was_asked_for(caplog):
    assert tail_drafts("auto", str(DEMO_MODEL_DIR)) == (False, "")
    assert caplog.messages == []
    assert tail_drafts("tail", str(DEMO_MODEL_DIR)) == (False, caplog.messages[0])
    assert "no layer for it" in caplog.messages[0]
