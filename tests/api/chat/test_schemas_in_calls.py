"""Arguments of calls match their tools' schemas, as clients write these, in JSON and in tags."""

from typing import Any

import pytest

from molink.api.chat import ChatFormat, Conversation, Message, Tool
from molink.api.errors import ApiError
from molink.serving.grammar_check import GrammarQuestion, answer_to
from tests.api.chat.test_constraints import REQUIRED, accepts, tagged


def in_tags(properties: dict, **more: Any) -> str:
    tool = Tool("f", parameters={"type": "object", "properties": properties, **more})
    asked = Conversation((Message("user", "hi"),), (tool,), REQUIRED)
    return ChatFormat("qwen3_coder").call_grammar(asked, "")


def coder(**values: str) -> str:
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{lines}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "maxLength": 3}, ["", "abc", "a\nb"], ["abcd", "a</parameter>"]),
        ({"type": "string", "minLength": 2}, ["ab"], ["a"]),
        ({"type": "string", "pattern": "^a/[0-9]+$"}, ["a/12"], ["a/", "ba/1"]),
        ({"type": "string", "pattern": "b"}, ["abc"], ["ac"]),
        ({"enum": ["C", "F"]}, ["C"], ["K", '"C"', "CF"]),
        ({"const": "x y"}, ["x y"], ["x"]),
        ({"type": "integer"}, ["-3"], ["x", "3.5", '"3"']),
        ({"type": ["integer", "null"]}, ["3", "null"], ["x"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["3", "null"], ["x"]),
        ({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]}, ["a"], ["ab"]),
        ({"$ref": "#/$defs/size"}, ["3"], ["x"]),
        ({"type": "array", "items": {"$ref": "#/$defs/size"}}, ["[1, 2]"], ["1", '["a"]']),
        ({"type": "object"}, ['{"a": "b"}'], ["a"]),
        ({}, ["anything <b>"], []),
        (True, ["anything"], []),
    ],
)
def test_values_in_tags_match_their_schema(schema, good, bad):
    grammar = in_tags({"a": schema}, required=["a"], **{"$defs": {"size": {"type": "integer"}}})
    for value in good:
        assert accepts(grammar, coder(a=value)), value
    for value in bad:
        assert not accepts(grammar, coder(a=value)), value


def test_arguments_in_tags_may_be_left_out_unless_they_are_required():
    grammar = in_tags({"a": {"type": "integer"}, "b": {}}, required=["b"])
    assert accepts(grammar, coder(b="x")) and accepts(grammar, coder(a="1", b="x"))
    assert not accepts(grammar, coder(a="1")) and not accepts(grammar, coder(b="x", a="1"))


@pytest.mark.parametrize("format", ["qwen3_coder", "glm45", "seed_oss", "minimax_m2", "hermes"])
@pytest.mark.parametrize(
    "odd",
    [
        {"required": None},
        {"required": True},
        {"required": [["a"]]},
        {"properties": None},
        {"properties": ["a"]},
        {"properties": {"a": None, "b": True}},
        {"properties": {"a": {"type": [["x"], "string"], "enum": None, "minLength": None}}},
        {"properties": {"a": {"type": "integer", "required": True, "description": None}}},
        {"type": None},
        {"type": ["object", "null"]},
    ],
)
def test_schemas_that_are_not_quite_schemas_are_followed_as_far_as_they_go(odd, format):
    tool = Tool("f", parameters={"type": "object", **odd})
    asked = Conversation((Message("user", "hi"),), (tool,), REQUIRED)
    answer = answer_to(GrammarQuestion("lark", ChatFormat(format).call_grammar(asked, "")))
    assert answer.error == "" or (format == "hermes" and "[[" in str(odd))


def test_a_schema_of_one_of_several_is_followed():
    kinds = [{"type": "string"}, {"type": "integer"}, {"const": 1}]
    tool = Tool("f", parameters={"type": "object", "properties": {"a": {"oneOf": kinds}}})
    asked = Conversation((Message("user", "hi"),), (tool,), REQUIRED)
    grammar = ChatFormat("hermes").call_grammar(asked, "")
    assert accepts(grammar, tagged({"name": "f", "arguments": {"a": 1}}))


def test_names_of_arguments_may_be_those_of_notes():
    names = ["description", "title", "default", "examples", "enum", "required", "format"]
    properties = {name: {"type": "integer", "description": "x" * 99} for name in names}
    properties["format"] = {"type": "string", "format": "int64", "title": "T"}
    tool = Tool("f", parameters={"properties": properties, "required": names})
    asked = Conversation((Message("user", "hi"),), (tool,), REQUIRED)
    grammar = ChatFormat("hermes").call_grammar(asked, "")
    arguments = dict.fromkeys(names, 1) | {"format": "a"}
    assert accepts(grammar, tagged({"name": "f", "arguments": arguments})) and "xxx" not in grammar
    del arguments["title"]
    assert not accepts(grammar, tagged({"name": "f", "arguments": arguments}))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"required": ["a"]}]},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a>b": {}}},
    ],
)
def test_a_schema_that_tags_cannot_follow_is_refused(schema):
    asked = Conversation((Message("user", "hi"),), (Tool("f", parameters=schema),), REQUIRED)
    with pytest.raises(ApiError, match="list all arguments"):
        ChatFormat("glm45").call_grammar(asked, "")
    assert ChatFormat("hermes").call_grammar(asked, "")
