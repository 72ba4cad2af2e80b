"""A model drafts for another where its words are the same, and is named where they are not."""

import logging
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from molink.models import DEMO_MODEL_DIR
from molink.serving.drafter import draft_model, first_difference
from molink.serving.served_model import read_served_model
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


@pytest.mark.parametrize("drafter", ["none", "copy", "auto"])
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


def test_two_without_a_tokenizer_need_as_many_words(caplog, tmp_path):
    for name, words in (("one", 0), ("other", 1)):
        save_tiny("llama", tmp_path / name, "float32", vocab_size=160 + words)
    bare = read_served_model(str(tmp_path / "one"), None)
    assert not draft_model(str(tmp_path / "one"), bare).refused
    assert draft_model(str(tmp_path / "other"), bare).refused
    assert "161 words, the model 160" in caplog.messages[0]
