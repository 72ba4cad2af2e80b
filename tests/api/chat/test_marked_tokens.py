"""Marks of calls that are tokens of their own: every token that a mask allows can be taken, and
what comes of it reads back as the call."""

import itertools
import json

import pytest
from jsonschema import validate

from molink.api.chat import ChatPrompt, Conversation, Message, Reply, Tool, ToolChoice
from tests.api.chat.marked import (
    FAMILIES,
    KINDS,
    format_of,
    grammars_of,
    read,
    tokenizer_of,
    walk,
)

TOWN = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["C", "<tool_call>", "</tool_call>"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["town", "unit"],
    "additionalProperties": False,
}
ZONE = {"type": "object", "properties": {"dst": {"type": "boolean"}}, "additionalProperties": False}
SCHEMAS = {"get_weather": TOWN, "get_time": ZONE}
CHOICES = {
    "required": ToolChoice("required"),
    "named": ToolChoice("named", "get_weather"),
    "auto": ToolChoice("auto"),
}
ASKED = (("required", True), ("required", False), ("named", True), ("auto", True))
SEEDS = range(2)


def asked(choice: str, parallel: bool = True) -> Conversation:
    tools = tuple(Tool(name, parameters=one, strict=True) for name, one in SCHEMAS.items())
    return Conversation(
        (Message("user", "hi"),), tools, CHOICES[choice], parallel_tool_calls=parallel
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_mask_allows_is_a_call(family, kind):
    tokenizer = tokenizer_of(family, kind)
    form = format_of(family, tokenizer, "none" if kind == "text" else "qwen3")
    grammars, whole = grammars_of(tokenizer), 0
    for (choice, parallel), seed in itertools.product(ASKED, SEEDS):
        conversation = asked(choice, parallel)
        grammar = form.call_grammar(conversation, "")
        drawn, has_ended = walk(grammars, tokenizer, grammar, seed)
        if has_ended and grammar:
            reply = read(ChatPrompt(conversation, form, "", grammar, (1,)), tokenizer, drawn)
            check(reply, choice, parallel)
            whole += 1
    assert whole or family == "openai", "thoughts in letters seldom end"


def check(reply: Reply, choice: str, parallel: bool) -> None:
    names = [call.name for call in reply.tool_calls]
    assert choice == "auto" or (names and not reply.text), reply
    assert parallel or len(names) <= 1
    assert choice != "named" or names == ["get_weather"]
    for call in reply.tool_calls:
        validate(json.loads(call.arguments), SCHEMAS[call.name])
