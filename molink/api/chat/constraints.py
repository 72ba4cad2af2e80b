"""Answers that must match a grammar, in the model's own way of answering.

A model that thinks may think first: the grammar that a request asks for is that of the text behind
it. An answer that must call a tool has a grammar in the model's own way of writing calls, with
arguments that match the tools' schemas.

vLLM's older way, one JSON array of calls whatever the model's format, was rejected: a model that
was trained on its own format calls better in it, and the readers know it already.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from molink.api.chat.conversation import Conversation, Tool
from molink.api.chat.formats.shapes import NAME, CallShape, JsonShape
from molink.api.chat.formats.think import ThinkTags
from molink.api.chat.lark import COMPACT, LarkWriter
from molink.api.chat.tag_grammar import free_call, tag_call
from molink.api.grammars.notes import without_notes
from molink.json_object import JsonObject

CALLS_MAX = 32
"""Calls of an answer that must call: small models would call until their length is used up."""

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
"""Schema of the arguments of a tool that is not strict."""


@dataclass(frozen=True, slots=True)
class AnswerGrammars:
    """Writer of the grammars of answers to one prompt."""

    tags: ThinkTags | None
    """Marks around the model's thoughts; None: it has none."""
    prompt: str
    """The template's text, as far as it tells whether the model thinks first."""
    lark: LarkWriter

    def forced_call(self, conversation: Conversation, shape: CallShape) -> str:
        """Grammar, in llguidance's Lark, of an answer that calls what the conversation's choice of
        tools says. Raises ApiError where the format has no way."""
        rules = self._calls(conversation, shape)
        return _lines(f"start: {self._thinking} calls", self._thoughts, *rules)

    def call_or_text(
        self, conversation: Conversation, shape: CallShape, grammar: str, begin: str
    ) -> str:
        """The grammar, as it travels, of an answer that calls a tool, or whose text matches
        `grammar`; `begin`: what the model writes before the text. Only strict tools' schemas
        hold."""
        start = f"start: {self._thinking} (calls | {self.lark.literal(begin)} @answer)"
        rules = self._calls(conversation, shape, is_free=True)
        return _with_answer(_lines(start, self._thoughts, *rules), grammar)

    def strict_calls(self, conversation: Conversation, shape: JsonShape, mark: str) -> str:
        """Grammar, in llguidance's Lark, of an answer that is any text until the model writes
        `mark`, with which calls in this shape begin: then it is a call of one of the tools, with
        arguments that match the schema of a tool that is strict, and text again behind it."""
        lark, tools = self.lark, conversation.tools
        whole = shape.begin or shape.open
        behind = lark.literal(shape.begin.removeprefix(mark)) if shape.begin else ""
        each = shape if shape.begin else replace(shape, open=whole.removeprefix(mark))
        more = f"({lark.literal(shape.between)} call)*" if shape.begin else ""
        calls = f"lead {behind} call {more} {lark.literal(shape.end)}"
        return _lines(
            f"start: {self._thinking} ({calls})* REST",
            lark.up_to("lead", mark),
            f"REST: {lark.without(mark)}",
            self._thoughts,
            *_any_call(tools, each, lark, is_free=True),
        )

    def after_thoughts(self, grammar: str, begin: str = "") -> str:
        """The grammar, as it travels, of an answer whose text matches `grammar`; `begin`: what the
        model writes before the text."""
        if not self._thoughts and not begin:
            return grammar
        start = f"start: {self._thinking} {self.lark.literal(begin)} @answer\n{self._thoughts}"
        return _with_answer(start, grammar)

    def _calls(
        self, conversation: Conversation, shape: CallShape, *, is_free: bool = False
    ) -> list[str]:
        """Rules for calls of the tools that a conversation may call; `is_free`: those that are not
        strict with any arguments. Raises ApiError where the format has no way."""
        choice, lark = conversation.tool_choice, self.lark
        tools = [tool for tool in conversation.tools if choice.name in ("", tool.name)]
        begin, between, end = "", "\n", ""
        is_single = choice.mode == "named" or not conversation.parallel_tool_calls
        if isinstance(shape, JsonShape):
            begin, between, end = shape.begin, shape.between, shape.end
            is_single = is_single or shape.is_single
        more = "" if is_single else f"({lark.literal(between)} call){{0,{CALLS_MAX - 1}}}"
        return [
            f"calls: {lark.literal(begin)} call {more} {lark.literal(end)}",
            *_any_call(tools, shape, lark, is_free=is_free),
        ]

    @property
    def _thinking(self) -> str:
        """The rule for what the model may think first, where there is one."""
        return "thinking" if self._thoughts else ""

    @property
    def _thoughts(self) -> str:
        """Rules for what the model may think first; none where it does not, or has thought."""
        tags, lark = self.tags, self.lark
        if tags is None or tags.is_closed(self.prompt):
            return ""
        body = "thoughts BREAKS?"
        opened = body if tags.begins_inside(self.prompt) else f"({lark.literal(tags.open)} {body})?"
        return f"thinking: {opened}\n{lark.up_to('thoughts', tags.close)}\nBREAKS: /\\n{{1,2}}/"


def _lines(*rules: str) -> str:
    return "\n".join(filter(None, rules))


def _any_call(
    tools: Sequence[Tool], shape: CallShape, lark: LarkWriter, *, is_free: bool
) -> list[str]:
    """Rules for a call of one of these tools, the first called `call`."""
    first = "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))
    return [first, *(_call(at, tool, shape, lark, is_free) for at, tool in enumerate(tools))]


def _with_answer(rules: str, grammar: str) -> str:
    """The grammar of these rules, as it travels, in which `@answer` is `grammar`."""
    first, *others = _grammars(grammar)
    whole = {"lark_grammar": rules}
    return json.dumps({"grammars": [whole, first | {"name": "answer"}, *others]})


def _grammars(grammar: str) -> list[JsonObject]:
    """A grammar travels as an object, which lists it and those that it names, or as Lark."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    return list(json.loads(grammar)["grammars"])


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
