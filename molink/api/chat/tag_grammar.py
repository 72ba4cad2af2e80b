"""Grammar of demanded calls whose arguments stand in tags, one by one.

The arguments come in the order of the tool's schema, those that are required always. One that may
be a string is bare text, of which the schema's length, pattern and choice are followed; `format`
says nothing here, as JSON Schema leaves it to the reader. All other values are JSON.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from molink.api.chat.conversation import Tool
from molink.api.chat.formats.parameters import Parameters
from molink.api.chat.formats.shapes import TagShape
from molink.api.chat.lark import COMPACT, LarkWriter, escaped
from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.grammars.notes import DEFINITIONS, required_of, without_notes

UNLISTED = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "dependentRequired",
        "dependentSchemas",
        "if",
        "maxProperties",
        "minProperties",
        "not",
        "oneOf",
    }
)
"""Keywords that say of a tool's arguments what no list of properties says."""

UNFOLLOWED = frozenset({"if", "not"})
"""Keywords of an argument that no bare text follows."""

_NO_KEY = re.compile(r'[<>"\s]')


def tag_call(number: int, tool: Tool, shape: TagShape, lark: LarkWriter) -> str:
    """Rules for a call of one tool, the first called `call_{number}`. Raises ApiError for a schema
    that cannot be followed in tags."""
    _check(tool)
    parameters, line = Parameters(tool.parameters), shape.line_break
    required = required_of(tool.parameters)
    begin = _begin(tool, shape)
    end = shape.close + (line + shape.end if shape.end else "")
    arguments: list[str] = []
    rules: list[str] = []
    for place, key in enumerate(parameters.properties):
        rule = f"argument_{number}_{place}"
        arguments.append(rule if key in required else f"{rule}?")
        rules += _argument(rule, key, parameters, tool.parameters, shape, lark)
    body = " ".join((lark.literal(begin), *arguments, lark.literal(end)))
    return "\n".join((f"call_{number}: {body}", *rules))


def free_call(number: int, tool: Tool, shape: TagShape, lark: LarkWriter) -> str:
    """Rules for a call of one tool with any arguments, the first called `call_{number}`."""
    end = lark.literal(shape.line_break + shape.end if shape.end else "")
    inner = (shape.key, shape.key_end, shape.value, shape.value_end)
    body = f"({lark.literal(shape.key)} body_{number} | {lark.literal(shape.close)})"
    begin = lark.literal(_begin(tool, shape))
    rest = lark.up_to(f"body_{number}", shape.close, among=inner)
    return f"call_{number}: {begin} {body} {end}\n{rest}"


def _begin(tool: Tool, shape: TagShape) -> str:
    """Text with which a call of a tool begins."""
    line = shape.line_break
    return (
        f"{shape.begin}{line + shape.open if shape.open else ''}{tool.name}{shape.name_end}{line}"
    )


def _argument(
    rule: str,
    key: str,
    parameters: Parameters,
    root: Mapping[str, Any],
    shape: TagShape,
    lark: LarkWriter,
) -> Iterator[str]:
    line, edge = shape.line_break, shape.value_break
    key_end = shape.key_end if parameters.is_text(key) else shape.json_key_end or shape.key_end
    begin = shape.key + key + key_end + (line + shape.value if shape.value else "") + edge
    end = edge + shape.value_end
    if not parameters.is_text(key):
        value = _json(parameters.properties[key], root) + " " + lark.literal(end)
    elif choices := _choices(parameters.of_text(key), shape):
        value = f"({' | '.join(map(lark.literal, choices))}) {lark.literal(end)}"
    else:
        value = f"text_{rule}"
        yield lark.up_to(value, end, _text(parameters.of_text(key), shape))
    yield f"{rule}: {lark.literal(begin)} {value} {lark.literal(line)}"


def _json(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    known = {word: root[word] for word in DEFINITIONS if word in root}
    whole = {**without_notes({**schema, **known}), "x-guidance": COMPACT}
    return "%json " + json.dumps(whole, ensure_ascii=False)


def _choices(schema: Mapping[str, Any], shape: TagShape) -> list[str]:
    """All texts that a schema allows, but for texts with a mark that ends a text; none: it allows
    more. Raises ApiError where no text is left."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    texts = [one for one in values if isinstance(one, str)] if isinstance(values, list) else []
    marks = (shape.value_end, shape.close)
    found = [one for one in texts if not any(mark in one for mark in marks)]
    if texts and not found:
        raise ApiError(
            f"'{texts[0][:NAME_CHARS_SHOWN]}' holds a mark of this model's calls, so no call can "
            "have it for an argument: leave it out of 'tools'.",
            param="tools",
        )
    return found


def _text(schema: Mapping[str, Any], shape: TagShape) -> str:
    """Terminal of a bare text: it cannot hold the marks that end it."""
    least, most = schema.get("minLength") or 0, schema.get("maxLength")
    most = "" if most is None else most
    marks = "|".join(escaped(re.escape(mark)) for mark in (shape.value_end, shape.close))
    terms = [f"/(?s:.{{{least},{most}}})/", f"~/(?s:.*)({marks})(?s:.*)/"]
    if isinstance(pattern := schema.get("pattern"), str):
        terms.append(f"/{_whole(pattern)}/")
    return " & ".join(terms)


def _whole(pattern: str) -> str:
    """Pattern that matches all of a text, for a schema's pattern, which may match within a text."""
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if re.search(r"(?<!\\)\$$", pattern) else "(?s:.*)"
    inner = pattern.removeprefix("^") if end else pattern.removeprefix("^").removesuffix("$")
    return f"{begin}({escaped(inner)}){end}"


def _keywords(schema: Any) -> Iterable[str]:
    return schema if isinstance(schema, Mapping) else ()


def _check(tool: Tool) -> None:
    schema = tool.parameters
    listed = Parameters(schema).properties
    unlisted = sorted(UNLISTED.intersection(schema))
    unlisted += [key for key, one in listed.items() if UNFOLLOWED.intersection(_keywords(one))]
    missing = [key for key in required_of(schema) if key not in listed]
    odd = [key for key in listed if _NO_KEY.search(key) or not key]
    if unlisted or missing or odd:
        found = str((unlisted or missing or odd)[0])[:NAME_CHARS_SHOWN]
        raise ApiError(
            f"A call of '{tool.name}' cannot be demanded, because this model writes each argument "
            f"under its name and '{found}' is in the way: list all arguments in 'properties', "
            "under names without blanks, quotes or angle brackets.",
            param="tools",
        )
