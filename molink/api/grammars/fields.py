"""Fields of a request that ask for a grammar, read as one.

OpenAI's `response_format`, vLLM's `structured_outputs`, and its older `guided_*` fields say the
same in three ways; a request may use one of them.
"""

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from molink.api.answers import json_text
from molink.api.errors import ApiError
from molink.api.grammars.checker import GrammarChecker
from molink.api.grammars.notes import without_notes
from molink.api.grammars.schemas import ResponseFormat, StructuredOutputs
from molink.api.schemas import SamplingBody
from molink.json_object import JsonObject
from molink.serving.grammar_check import GrammarQuestion
from molink.serving.model_card import ModelCard

GRAMMARS = web.AppKey("grammars", GrammarChecker)

ANY_OBJECT = '{"type": "object"}'

Question = tuple[str, GrammarQuestion]
"""A field, and what it asks for."""

Asked = Iterator[Question]


async def grammar_of(
    request: web.Request, body: SamplingBody, card: ModelCard, also: Question | None = None
) -> str:
    """The grammar that the answers to a request must match, checked; empty where there is none.
    `also`: what a field asks for that only its endpoint has. Raises ApiError."""
    asked = grammar_question(body, also)
    if asked is None:
        return ""
    param, question = asked
    if card.tokenizer is None:
        raise ApiError(
            f"This model has no tokenizer, so its answers hold no text to match '{param}': leave "
            "it out.",
            param=param,
        )
    if body.ignore_eos:
        raise ApiError(
            f"'ignore_eos' and '{param}' exclude each other, because an answer ends where its "
            "grammar does: leave one out.",
            param="ignore_eos",
        )
    return await request.app[GRAMMARS].grammar(question, param)


def grammar_question(body: SamplingBody, also: Question | None = None) -> Question | None:
    """The field that asks for a grammar, and what it asks for; None: none does. Raises ApiError
    for more than one."""
    asked = [] if also is None else [also]
    asked += [*_asked_by_guided_fields(body), *_asked_by_format(body.response_format)]
    asked += _asked_by_structured_outputs(body.structured_outputs)
    if len(asked) > 1:
        (first, _), (second, _) = asked[:2]
        raise ApiError(
            f"'{first}' and '{second}' exclude each other: send one of them.", param=second
        )
    return asked[0] if asked else None


def _asked_by_format(given: ResponseFormat | None) -> Asked:
    if given is None or given.type == "text":
        return
    schema = given.schema_ if given.json_schema is None else given.json_schema.schema_
    if schema is not None:
        yield "response_format", _schema_question(schema, "response_format")
        return
    if given.type == "json_schema":
        raise ApiError(
            "'response_format.json_schema.schema' is missing: add the schema to the request.",
            param="response_format",
        )
    yield schema_question(None, "response_format")


def _asked_by_guided_fields(body: SamplingBody) -> Asked:
    if body.guided_json is not None:
        yield "guided_json", _schema_question(body.guided_json, "guided_json")
    yield from _asked_as_text("guided_", body.guided_regex, body.guided_choice, body.guided_grammar)


def _asked_as_text(
    prefix: str, regex: str | None, choice: list[str] | None, grammar: str | None
) -> Asked:
    """Grammars that vLLM's fields ask for under both of their names."""
    if regex is not None:
        yield f"{prefix}regex", GrammarQuestion("regex", regex)
    if choice is not None:
        yield f"{prefix}choice", GrammarQuestion("choice", json_text(choice))
    if grammar is not None:
        yield f"{prefix}grammar", GrammarQuestion("grammar", grammar)


def _asked_by_structured_outputs(given: StructuredOutputs | None) -> Asked:
    if given is None:
        return
    name, blanks = "structured_outputs", given.whitespace_pattern
    if given.disable_any_whitespace:
        blanks = ""
    if given.json_ is not None:
        yield f"{name}.json", _schema_question(given.json_, f"{name}.json", blanks)
    if given.json_object:
        yield f"{name}.json_object", GrammarQuestion("json", ANY_OBJECT, blanks)
    yield from _asked_as_text(f"{name}.", given.regex, given.choice, given.grammar)
    if given.structural_tag is not None:
        yield f"{name}.structural_tag", GrammarQuestion("tags", given.structural_tag)


def schema_question(schema: JsonObject | None, param: str) -> Question:
    """Question about the field `param`, which asks for JSON of this schema; None: of any object."""
    text = ANY_OBJECT if schema is None else json_text(without_notes(schema))
    return param, GrammarQuestion("json", text)


def _schema_question(schema: Any, param: str, blanks: str | None = None) -> GrammarQuestion:
    """Question of a schema; vLLM takes one as an object, or as a string that holds one."""
    if isinstance(schema, dict):
        return GrammarQuestion("json", json_text(without_notes(schema)), blanks)
    if isinstance(schema, str):
        return GrammarQuestion("json", schema, blanks)
    raise ApiError(f"'{param}' must be a JSON schema: send it as an object.", param=param)
