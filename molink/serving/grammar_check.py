"""Check of grammars in a process of its own: `python -m molink.serving.grammar_check`.

Reads questions, one as JSON on each line, and answers each with a line: the grammar in the form in
which it travels to the tail, or what is wrong with it. A grammar is a program that somebody else
wrote. The library bounds what it may cost, but a schema of 60 KB still compiles for a second, and a
bug in a compiler of grammars would be the end of whoever runs it; in the coordinator that would be
all users'. A thread was rejected: it cannot be ended.
"""

import json
import os
import re
import resource
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MaxLen

from molink.errors import UserError
from molink.json_object import JsonObject
from molink.wire.schema import Rules, Schema
from molink_scheduler.request import GRAMMAR_CHARS_MAX

MODULE = "molink.serving.grammar_check"

NICENESS = 5
"""Users' tokens come first."""

DATA_BYTES_MAX = 2**29
"""Memory of the process: ten times what the largest grammar takes within the library's limits."""

ERROR_CHARS_MAX = 200
"""Most characters of the library's words in an answer; it quotes the grammar."""

BLANKS = r"[ ]|\n{1,2}[ \t]{0,20}"
"""Blanks between parts of JSON, as people and pretty-printers write them. With any number of
blanks, small models write blanks up to max_tokens."""


_YEAR = "([1-9][0-9]{3}|0([1-9][0-9]{2}|0[1-9][0-9]|00[1-9]))"
_LEAP = "(04|08|[2468][048]|[13579][26])"
_DATE = (
    f"(([0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29|"
    f"{_YEAR}-(02-([01][0-9]|2[0-8])|(0[13-9]|1[0-2])-[0-9]{{2}}))"
)
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}.{{7}}[0-5]",
    "time": "^.{6}[0-5]",
}
"""Patterns that a format must match besides the library's: that would let a model write the 29th of
February in any year, the year 0, and leap seconds at any time, which no reader takes.
"""

CHECKED_BYTES = 32
"""Bytes of an answer that are tried: a grammar that can begin in too many ways shows it by then."""

BLANK = 32

TOKEN_ID, ANY_TOKEN = re.compile(r"<\[[0-9]+\]>"), "<[256]>"
"""A grammar is checked with bytes for tokens, where one special token stands for all."""

VALUES = ("const", "default", "enum", "examples")
"""Keywords whose values are no schemas."""


@dataclass(frozen=True, slots=True)
class GrammarQuestion:
    """Form that a user asked an answer to match."""

    kind: Literal["json", "regex", "choice", "grammar", "lark", "tags"]
    text: str
    """A JSON schema, a regular expression, a JSON list of strings, or Lark or GBNF; "lark" is the
    server's own, in which `<[5]>` is a token of the model; "tags" is vLLM's JSON of structural
    tags, of the kind with `structures` and `triggers`."""
    blanks: str | None = None
    """Regular expression of what may stand between the parts of JSON; empty: nothing may. None: as
    usual."""


@dataclass(frozen=True, slots=True)
class GrammarAnswer:
    """Result of a question: its grammar or the mistake in it; the other is empty."""

    grammar: str
    """Grammar in llguidance's form."""
    error: Annotated[str, MaxLen(ERROR_CHARS_MAX)]
    """Mistake in the question, as a clause."""


QUESTION = Schema(GrammarQuestion, Rules())
ANSWER = Schema(GrammarAnswer, Rules())


def answer_to(question: GrammarQuestion) -> GrammarAnswer:
    """The grammar, compiled once to see that it can be."""
    try:
        grammar = _grammar(question)
        is_own = question.kind == "lark"
        _check(TOKEN_ID.sub(ANY_TOKEN, grammar) if is_own else grammar)
    except RecursionError:
        return GrammarAnswer("", "it is nested too deeply")
    except (UserError, ValueError) as error:
        clause = _clause(str(error))
        is_pattern = question.kind in ("json", "lark") and clause.startswith(("look-", "backref"))
        return GrammarAnswer("", f"pattern: {clause}" if is_pattern else clause)
    return GrammarAnswer(grammar, "")


def _grammar(question: GrammarQuestion) -> str:
    """The question's grammar in llguidance's form. Raises ValueError or UserError."""
    from llguidance import LLMatcher, grammar_from

    match question.kind:
        case "json":
            blanks = BLANKS if question.blanks is None else question.blanks
            options: Any = {"lenient": False, "whitespace_flexible": bool(blanks)}
            if blanks:
                options["whitespace_pattern"] = blanks
            schema = json.dumps(_with_patterns(json.loads(question.text)), ensure_ascii=False)
            return LLMatcher.grammar_from_json_schema(schema, overrides=options)
        case "choice":
            words = [json.dumps(word, ensure_ascii=False) for word in json.loads(question.text)]
            return LLMatcher.grammar_from_lark("start: " + " | ".join(words))
        case "tags":
            return LLMatcher.grammar_from_lark(_tags_lark(json.loads(question.text)))
        case kind:
            return grammar_from(kind, question.text)


def _tags_lark(given: Any) -> str:
    """Lark of text in which each trigger begins one of the tags. Raises UserError."""
    from llguidance import StructTag

    try:
        triggers, structures = given["triggers"], given["structures"]
        begun = [(next(filter(one["begin"].startswith, triggers)), one) for one in structures]
        tags = [
            StructTag(trigger=trigger, begin=one["begin"], grammar=one["schema"], end=one["end"])
            for trigger, one in begun
            if trigger and isinstance(one["schema"], dict) and isinstance(one["end"], str)
        ]
    except (KeyError, TypeError, AttributeError, StopIteration):
        tags = []
    if not tags or len(tags) < len(structures):
        raise UserError(
            "it takes 'triggers' and 'structures', each with a 'schema', an 'end' and a 'begin' "
            "that starts with a trigger"
        )
    return StructTag.to_grammar(tags, assume_special=False)


def _with_patterns(schema: Any) -> Any:
    """The schema with a pattern for each format that needs one and has none."""
    if isinstance(schema, list):
        return [_with_patterns(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: value if key in VALUES else _with_patterns(value) for key, value in schema.items()
    }
    _check_names(schema)
    name = schema.get("format")
    if isinstance(name, str) and name in FORMAT_PATTERNS:
        found.setdefault("pattern", FORMAT_PATTERNS[name])
    return found


def _check_names(schema: JsonObject) -> None:
    """Raise UserError where only names that come twice could make enough properties."""
    least, listed = schema.get("minProperties"), schema.get("required", [])
    if isinstance(least, int) and isinstance(listed, list) and least > len(listed) + 1:
        raise UserError(
            f"minProperties is at most {len(listed) + 1} where {len(listed)} names are required, "
            "because others may come twice"
        )


def _check(grammar: str) -> None:
    """Raise UserError when the tail could not follow the grammar from the start."""
    from llguidance import LLMatcher, LLTokenizer

    from molink.wire.grammar import parser_limits

    if len(grammar) > GRAMMAR_CHARS_MAX:
        raise UserError(f"it is longer than {GRAMMAR_CHARS_MAX} characters")
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=parser_limits())
    for _ in range(CHECKED_BYTES):
        if matcher.is_error() or (byte := _next_byte(matcher.compute_bitmask())) is None:
            break
        matcher.consume_token(byte)
    if matcher.get_error().startswith("NoExtension"):
        raise UserError("no text matches it")
    if matcher.is_error():
        raise UserError(matcher.get_error())


def _next_byte(mask: bytes) -> int | None:
    """The first byte of a mask that is neither blank nor the end: quotation marks come before
    brackets that close, so objects and lists are entered."""
    allowed = int.from_bytes(mask, "little")
    return next((byte for byte in range(BLANK + 1, 256) if allowed >> byte & 1), None)


def _clause(text: str) -> str:
    """Sentence of an error of several lines, without the places that it draws."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it is not valid"]
    said = next((line for line in lines if line.startswith("error: ")), lines[0])
    return said.removeprefix("error: ").rstrip(".:")[:ERROR_CHARS_MAX]


def _main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(flush=True)
    for line in sys.stdin:
        answer = answer_to(QUESTION.read(json.loads(line)))
        print(json.dumps(ANSWER.write(answer)), flush=True)


if __name__ == "__main__":
    _main()
