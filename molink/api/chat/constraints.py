"""Answers that must match a grammar, in the model's own way of answering.

A model that thinks may think first: the grammar that a request asks for is that of the text behind
it. An answer that must call a tool has a grammar in the model's own way of writing calls, with
arguments that match the tools' schemas.

vLLM's older way, one JSON array of calls whatever the model's format, was rejected: a model that
was trained on its own format calls better in it, and the readers know it already.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from molink.api.chat.conversation import Conversation, Tool
from molink.api.chat.formats.shapes import NAME, CallShape, JsonShape
from molink.api.chat.formats.think import ThinkTags
from molink.api.chat.lark import COMPACT, LarkWriter
from molink.api.chat.tag_grammar import free_call, tag_call
from molink.api.grammars.notes import without_notes

__all__ = ["after_thoughts", "call_or_text", "forced_call", "strict_calls"]

CALLS_MAX = 32
"""Calls of an answer that must call: small models would call until their length is used up."""

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
"""Schema of the arguments of a tool that is not strict."""


def forced_call(
    conversation: Conversation,
    shape: CallShape,
    tags: ThinkTags | None,
    prompt: str,
    lark: LarkWriter,
) -> str:
    """Grammar, in llguidance's Lark, of an answer to `prompt`, the template's text, that calls what
    the conversation's choice of tools says. Raises ApiError where the format has no way."""
    thoughts = _thoughts(tags, prompt, lark)
    rules = _calls(conversation, shape, lark)
    return "\n".join(filter(None, (f"start: {thoughts and 'thinking'} calls", thoughts, *rules)))


def call_or_text(
    conversation: Conversation,
    shape: CallShape,
    grammar: str,
    tags: ThinkTags | None,
    prompt: str,
    lark: LarkWriter,
    begin: str = "",
) -> str:
    """The grammar, as it travels, of an answer to `prompt` that calls a tool, or whose text matches
    `grammar`; `begin`: what the model writes before the text. Only strict tools' schemas hold."""
    thoughts = _thoughts(tags, prompt, lark)
    start = f"start: {thoughts and 'thinking'} (calls | {lark.literal(begin)} @answer)"
    rules = _calls(conversation, shape, lark, is_free=True)
    return _with_answer("\n".join(filter(None, (start, thoughts, *rules))), grammar)


def _calls(
    conversation: Conversation, shape: CallShape, lark: LarkWriter, *, is_free: bool = False
) -> list[str]:
    """Rules for calls of the tools that a conversation may call; `is_free`: those that are not
    strict with any arguments. Raises ApiError where the format has no way."""
    choice = conversation.tool_choice
    tools = [tool for tool in conversation.tools if choice.name in ("", tool.name)]
    begin, between, end = "", "\n", ""
    is_single = choice.mode == "named" or not conversation.parallel_tool_calls
    if isinstance(shape, JsonShape):
        begin, between, end = shape.begin, shape.between, shape.end
        is_single = is_single or shape.is_single
    more = "" if is_single else f"({lark.literal(between)} call){{0,{CALLS_MAX - 1}}}"
    return [
        f"calls: {lark.literal(begin)} call {more} {lark.literal(end)}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(tools))),
        *(_call(number, tool, shape, lark, is_free) for number, tool in enumerate(tools)),
    ]


def strict_calls(
    conversation: Conversation,
    shape: JsonShape,
    mark: str,
    tags: ThinkTags | None,
    prompt: str,
    lark: LarkWriter,
) -> str:
    """Grammar, in llguidance's Lark, of an answer to `prompt` that is any text until the model
    writes `mark`, with which calls in this shape begin: then it is a call of one of the tools, with
    arguments that match the schema of a tool that is strict, and text again behind it."""
    whole = shape.begin or shape.open
    behind = lark.literal(shape.begin.removeprefix(mark)) if shape.begin else ""
    each = shape if shape.begin else replace(shape, open=whole.removeprefix(mark))
    more = f"({lark.literal(shape.between)} call)*" if shape.begin else ""
    thoughts = _thoughts(tags, prompt, lark)
    calls = f"lead {behind} call {more} {lark.literal(shape.end)}"
    rules = [
        f"start: {thoughts and 'thinking'} ({calls})* REST",
        "call: " + " | ".join(f"call_{number}" for number in range(len(conversation.tools))),
        lark.up_to("lead", mark),
        f"REST: {lark.without(mark)}",
        thoughts,
        *(_call(number, tool, each, lark, True) for number, tool in enumerate(conversation.tools)),
    ]
    return "\n".join(filter(None, rules))


def after_thoughts(
    grammar: str, tags: ThinkTags | None, prompt: str, lark: LarkWriter, begin: str = ""
) -> str:
    """The grammar, as it travels, of an answer to `prompt` whose text matches `grammar`; `begin`:
    what the model writes before the text."""
    thoughts = _thoughts(tags, prompt, lark)
    if not thoughts and not begin:
        return grammar
    start = f"start: {thoughts and 'thinking'} {lark.literal(begin)} @answer\n{thoughts}"
    return _with_answer(start, grammar)


def _with_answer(rules: str, grammar: str) -> str:
    """The grammar of these rules, as it travels, in which `@answer` is `grammar`."""
    first, *others = _grammars(grammar)
    whole = {"lark_grammar": rules}
    return json.dumps({"grammars": [whole, first | {"name": "answer"}, *others]})


def _grammars(grammar: str) -> list[dict[str, Any]]:
    """A grammar travels as an object, which lists it and those that it names, or as Lark."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    return list(json.loads(grammar)["grammars"])


def _thoughts(tags: ThinkTags | None, prompt: str, lark: LarkWriter) -> str:
    """Rules for what the model may think first; none where it does not, or has thought."""
    if tags is None or tags.is_closed(prompt):
        return ""
    body = "thoughts BREAKS?"
    opened = body if tags.begins_inside(prompt) else f"({lark.literal(tags.open)} {body})?"
    return f"thinking: {opened}\n{lark.up_to('thoughts', tags.close)}\nBREAKS: /\\n{{1,2}}/"


def _call(number: int, tool: Tool, shape: CallShape, lark: LarkWriter, is_free: bool) -> str:
    """Rules for a call of one tool; `is_free`: with any arguments where it is not strict."""
    if not isinstance(shape, JsonShape):
        return (free_call if is_free else tag_call)(number, tool, shape, lark)
    begin = lark.literal(shape.open.replace(NAME, tool.name))
    schema = {
        **ANY_ARGUMENTS,
        **({} if is_free and not tool.strict else without_notes(tool.parameters)),
    }
    if isinstance(kinds := schema["type"], list) and "object" in kinds:
        schema |= ANY_ARGUMENTS
    written = json.dumps(schema | {"x-guidance": COMPACT}, ensure_ascii=False)
    return (
        f"call_{number}: {begin} arguments_{number} {lark.literal(shape.close)}\n"
        f"arguments_{number}: %json {written}"
    )
