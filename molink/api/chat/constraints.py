"""Answers that must match a grammar, in the model's own way of answering.

A model that thinks may think first: the grammar that a request asks for is that of the text behind
it. An answer that must call a tool has a grammar in the model's own way of writing calls, with
arguments that match the tools' schemas.

Marks that are special tokens are no text that a grammar could ask for, so they are written at the
end of the prompt and read as if the model had written them; what the model thinks has no place
then. vLLM's older way, one JSON array of calls whatever the model's format, was rejected: a model
that was trained on its own format calls better in it, and the readers know it already.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molink.api.chat.conversation import Conversation, Tool
from molink.api.chat.formats.think import ThinkTags
from molink.api.errors import ApiError
from molink.config.parsers import HARMONY_CALLS

__all__ = ["Constraint", "after_thoughts", "forced_call"]

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Arguments as models write them: with blanks wherever JSON takes them, small models write blanks
for ever."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer begins with, and what follows."""

    prefill: str = ""
    """Written at the end of the prompt."""
    grammar: str = ""
    """Of the rest, in llguidance's Lark; empty: anything."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a format writes calls: one is `open`, a JSON object, `close`."""

    prefill: str = ""
    begin: str = ""
    """Before the first call."""
    open: str = ""
    close: str = ""
    between: str = ""
    end: str = ""
    arguments_key: str = "arguments"
    is_single: bool = False
    """Whether the model makes one call at a time."""


SHAPES = {
    "hermes": _Shape(open="<tool_call>\n", close="\n</tool_call>", between="\n"),
    "llama3_json": _Shape(arguments_key="parameters", is_single=True),
    "mistral": _Shape(prefill="[TOOL_CALLS]", begin="[", between=", ", end="]"),
}

HARMONY_PREFILL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


def forced_call(
    conversation: Conversation, tool_parser: str, tags: ThinkTags | None, prompt: str
) -> Constraint:
    """How an answer to `prompt`, the template's text, is made to call what the conversation's
    choice of tools says. Raises ApiError where the format has no way."""
    choice = conversation.tool_choice
    tools = [tool for tool in conversation.tools if choice.name in ("", tool.name)]
    if tool_parser == HARMONY_CALLS:
        return _in_harmony(tools)
    shape = SHAPES.get(tool_parser)
    if shape is None:
        raise ApiError(
            "This model cannot be made to call a tool: send 'tool_choice': \"auto\", and ask for "
            "the call in the prompt.",
            param="tool_choice",
            code="unsupported_parameter",
        )
    is_single = choice.mode == "named" or shape.is_single or not conversation.parallel_tool_calls
    more = "" if is_single else f"({_literal(shape.between)} call)*"
    thoughts = "" if shape.prefill else _thoughts(tags, prompt)
    rules = [
        f"start: {thoughts and 'thinking'} {_literal(shape.begin)} call {more} "
        + _literal(shape.end),
        "call: " + " | ".join(f"call_{number}" for number in range(len(tools))),
        thoughts,
        *(_call(number, tool, shape) for number, tool in enumerate(tools)),
    ]
    return Constraint(shape.prefill, "\n".join(filter(None, rules)))


def after_thoughts(grammar: str, tags: ThinkTags | None, prompt: str) -> str:
    """The grammar, as it travels, of an answer to `prompt` whose text matches `grammar`."""
    thoughts = _thoughts(tags, prompt)
    if not thoughts:
        return grammar
    whole = {"lark_grammar": f"start: thinking @answer\n{thoughts}"}
    first, *others = _grammars(grammar)
    return json.dumps({"grammars": [whole, first | {"name": "answer"}, *others]})


def _grammars(grammar: str) -> list[dict[str, Any]]:
    """A grammar travels as an object, which lists it and those that it names, or as Lark."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    return list(json.loads(grammar)["grammars"])


def _in_harmony(tools: Sequence[Tool]) -> Constraint:
    """The tool's name is part of a header, whose marks are special tokens."""
    if len(tools) != 1:
        raise ApiError(
            "This model can only be made to call one certain tool: name it in 'tool_choice'.",
            param="tool_choice",
            code="unsupported_parameter",
        )
    (tool,) = tools
    return Constraint(HARMONY_PREFILL.format(tool.name), f"start: %json {_schema(tool)}")


def _thoughts(tags: ThinkTags | None, prompt: str) -> str:
    """Rules for what the model may think first; none where it does not, or has thought."""
    if tags is None or tags.is_closed(prompt):
        return ""
    end = re.escape(tags.close).replace("/", r"\/")
    body = "thoughts BREAKS?"
    opened = body if tags.begins_inside(prompt) else f"({_literal(tags.open)} {body})?"
    return f"thinking: {opened}\nthoughts[lazy]: /(?s:.*){end}/\nBREAKS: /\\n{{1,2}}/"


def _call(number: int, tool: Tool, shape: _Shape) -> str:
    """Rules for a call of one tool."""
    name = json.dumps(tool.name, ensure_ascii=False)
    head = f'{shape.open}{{"name": {name}, "{shape.arguments_key}": '
    return (
        f"call_{number}: {_literal(head)} arguments_{number} {_literal('}' + shape.close)}\n"
        f"arguments_{number}: %json {_schema(tool)}"
    )


def _schema(tool: Tool) -> str:
    schema = {"type": "object"} | dict(tool.parameters) | {"x-guidance": COMPACT}
    return json.dumps(schema, ensure_ascii=False)


def _literal(text: str) -> str:
    """A text as a grammar quotes it; nothing for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""
