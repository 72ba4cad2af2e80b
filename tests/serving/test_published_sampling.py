"""A model's own sampling settings hold where nobody says otherwise."""

import json
import shutil

import pytest

from molink.api.chat import ChatFormat
from molink.checkpoint.checkpoint import open_checkpoint
from molink.errors import CheckpointError
from molink.models import DEMO_MODEL_DIR
from molink.serving.model_card import SamplingDefaults
from molink.serving.served_model import published_sampling, read_served_model


def published(tmp_path, text: str | None) -> SamplingDefaults:
    (tmp_path / "config.json").write_text("{}")
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    return published_sampling(open_checkpoint(str(tmp_path)))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {}),
        ({"do_sample": False}, {}),
        ({"do_sample": False, "temperature": None, "top_k": None}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0},
        ),
        ({"repetition_penalty": 1.05, "temperature": 1}, {"repetition_penalty": 1.05}),
        ({"top_k": -1}, {}),
        ({"top_k": 64.0}, {"top_k": 64}),
    ],
)
def test_as_makers_write_them(tmp_path, said, expected):
    assert published(tmp_path, json.dumps(said)) == SamplingDefaults(**expected)


def test_no_file_says_nothing(tmp_path):
    assert published(tmp_path, None) == SamplingDefaults()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("temperature", [0.6]),
        ("top_p", 0),
        ("top_p", 95),
        ("top_k", 0.5),
        ("top_k", 10**400),
        ("top_k", -7),
        ("min_p", 2),
        ("repetition_penalty", 0),
    ],
)
def test_what_is_none_is_one_sentence_at_start(tmp_path, name, value):
    with pytest.raises(CheckpointError, match=rf"for {name}: .*--generation-config none") as caught:
        published(tmp_path, json.dumps({name: value}))
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_one_sentence_at_start(tmp_path):
    for text in ("{", "[]"):
        with pytest.raises(CheckpointError, match=r"generation_config\.json of"):
            published(tmp_path, text)


def test_an_operator_can_have_it_the_old_way(tmp_path):
    folder = shutil.copytree(DEMO_MODEL_DIR, tmp_path / "demo")
    auto, none = (read_served_model(str(folder), None, (), way) for way in ("auto", "none"))
    assert auto.card.sampling == SamplingDefaults(temperature=0.7, top_p=0.9)
    assert none.card.sampling == SamplingDefaults()
    (folder / "generation_config.json").write_text('{"temperature": "hot", "eos_token_id": 3}')
    assert read_served_model(str(folder), None, (), "none").card.eos_token_ids == (3, 2)


def test_a_tokenizer_with_more_words_than_rows_is_told_at_start(tmp_path, caplog):
    folder = shutil.copytree(DEMO_MODEL_DIR, tmp_path / "demo")
    read_served_model(str(folder), None)
    assert "rows of words" not in caplog.text
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    read_served_model(str(folder), None)
    assert "the model only 300 rows of words" in caplog.text


def named(tmp_path, *names: str):
    folder = shutil.copytree(DEMO_MODEL_DIR, tmp_path / "demo")
    says = "{% for m in messages %}{{ m.content }}{% endfor %}"
    templates = {
        "rag": f"RAG <|tool_call|></think>{says}",
        "default": f"D:{says}",
        "tool_use": f"T:{says}{{{{ tools | length }}}}<tool_call>",
    }
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": one, "template": templates[one]} for one in names]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_of_several_templates_the_one_that_is_used_tells_the_parser(tmp_path):
    tokenizer = read_served_model(
        str(named(tmp_path, "rag", "tool_use", "default")), None
    ).card.tokenizer
    found = ChatFormat.of(tokenizer)
    assert (found.tool_parser, found.reasoning_parser, found.takes_tools) == (
        "hermes",
        "none",
        True,
    )
    turns = [{"role": "user", "content": "hi"}]
    for tools, expected in ((None, "D:hi"), ([{}], "T:hi1<tool_call>")):
        assert tokenizer.apply_chat_template(turns, tools=tools, tokenize=False) == expected


def test_templates_without_a_default_one_are_one_sentence_at_start(tmp_path):
    with pytest.raises(CheckpointError, match="named rag, tool_use and no default one"):
        read_served_model(str(named(tmp_path, "rag", "tool_use")), None)
