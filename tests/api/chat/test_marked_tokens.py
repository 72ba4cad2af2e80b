"""Marks of calls that are tokens of their own: every token that a mask allows can be taken, and
what comes of it reads back as the call."""

import itertools
import json

import pytest
from jsonschema import validate

from molink.api.chat import ChatPrompt, Conversation, Message, Reply, Tool, ToolChoice
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams
from tests.api.chat.marked import (
    DEMO,
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


ANSWER = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}'


@pytest.mark.parametrize("kind", ["special", "ordinary"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_of_a_form_forbids_no_call(family, kind):
    tokenizer = tokenizer_of(family, kind)
    form, grammars = format_of(family, tokenizer), grammars_of(tokenizer)
    tools = tuple(Tool(name, parameters=one) for name, one in SCHEMAS.items())
    conversation = Conversation((Message("user", "hi"),), tools)
    closed = json.dumps(json.loads(ANSWER) | {"additionalProperties": False})
    text = answer_to(GrammarQuestion("json", closed)).grammar
    prompt = ChatPrompt(conversation, form, "<think></think>", "", (1,))
    found = set()
    for seed in range(12):
        drawn, has_ended = walk(grammars, tokenizer, prompt.grammar_of_answer(text), seed)
        if has_ended:
            reply = read(prompt, tokenizer, drawn)
            found |= {call.name for call in reply.tool_calls} or {"text"}
            assert reply.tool_calls or json.loads(reply.text)["a"] in (1, 2), reply
    assert "text" in found or family == "openai", found


def test_a_call_and_a_text_of_the_form_are_both_taken():
    (form, tokenizer) = (format_of("hermes", DEMO), DEMO)
    tools = (Tool("get_time", parameters=ZONE), Tool("get_weather", parameters=TOWN, strict=True))
    conversation = Conversation((Message("user", "hi"),), tools)
    prompt = ChatPrompt(conversation, form, "<think></think>", "", (1,))
    grammar = prompt.grammar_of_answer(answer_to(GrammarQuestion("json", ANSWER)).grammar)
    grammars = grammars_of(tokenizer)
    good = {"town": "Oslo", "unit": "C"}
    for text, is_taken in (
        ('{"a": 1}', True),
        ('{"a": 3}', False),
        ('<tool_call>\n{"name": "get_time", "arguments": {"any": [1]}}\n</tool_call>', True),
        (f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': good})}\n", True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"town": 1', False),
        ("It rains.", False),
    ):
        assert (
            follows(grammars, grammar, tokenizer.encode(text, add_special_tokens=False)) is is_taken
        ), text


def follows(grammars, grammar: str, tokens: list[int]) -> bool:
    sampling = SamplingParams(max_tokens=500, grammar=grammar)
    constraint = grammars.constrain(Admission(1, 1, 500, sampling, output=()))
    for token_id in tokens:
        if bool(constraint.forbidden()[token_id]):
            return False
        constraint.take(token_id)
    return True


def test_a_const_that_looks_like_a_mark_stays_text():
    tokenizer = tokenizer_of("hermes", "ordinary")
    grammars = grammars_of(tokenizer)
    grammar = answer_to(GrammarQuestion("choice", '["<tool_call>"]')).grammar
    drawn, has_ended = walk(grammars, tokenizer, grammar, seed=1)
    assert has_ended and tokenizer.decode(drawn) == "<tool_call>" and len(drawn) > 1
