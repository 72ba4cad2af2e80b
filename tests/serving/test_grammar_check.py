"""Questions about grammars, as the process that checks them answers."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from molink.serving.grammar_check import ERROR_CHARS_MAX, GrammarQuestion, answer_to
from molink_scheduler.request import GRAMMAR_CHARS_MAX
from tools.experiments.grammars.schemas import KEYWORDS, json_schemas

ANYTHING = '{"type": "object"}'


def ask(kind: str, text: str, blanks: str | None = None):
    return answer_to(GrammarQuestion(kind, text, blanks))


def keywords(schema) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(keywords, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema).union(*map(keywords, schema.values()))


def test_the_schemas_are_many_different_and_use_every_keyword():
    schemas = [schema for _, schema in json_schemas()]
    assert len({json.dumps(schema) for schema in schemas}) == len(schemas) >= 200
    assert keywords(schemas) >= KEYWORDS
    assert json_schemas() == json_schemas()


@pytest.mark.parametrize(("name", "schema"), json_schemas(), ids=lambda value: str(value)[:20])
def test_every_schema_has_a_grammar(name, schema):
    answer = ask("json", json.dumps(schema))
    assert answer.grammar and not answer.error


REFUSED = [
    ("json", '{"not": {"type": "string"}}', 'Unimplemented keys: ["not"]'),
    ("json", '{"if": {}, "then": {}}', "Unimplemented keys"),
    ("json", '{"type": "array", "uniqueItems": true}', 'Unimplemented keys: ["uniqueItems"]'),
    ("json", '{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf"),
    ("json", '{"type": "string", "format": "poem"}', "Unknown format: poem"),
    ("json", '{"type": "strin"}', "Invalid type: strin"),
    ("json", '{"enum": []}', "Unsatisfiable schema"),
    ("json", '{"$ref": "#"}', "no text matches it"),
    ("json", '{"$ref": "https://example.org/schema"}', "does not fetch"),
    ("json", '{"x-guidance": {"lenient": true}, "not": {}}', "Unimplemented keys"),
    ("json", "[1]", "object schema"),
    ("json", '{"type": "object", "minProperties": 2}', "minProperties is at most 1 where 0"),
    ("json", "{", "Expecting property name"),
    ("json", '{"items":' * 3000 + "{}" + "}" * 3000, "nested too deeply"),
    ("json", '{"items":' * 200 + "{}" + "}" * 200, "recursion limit"),
    ("json", ANYTHING[:-1] + ', "x": "' + "y" * GRAMMAR_CHARS_MAX + '"}', "longer than"),
    ("regex", "(a", "unclosed group"),
    ("regex", "(?=a)b", "look-ahead"),
    ("regex", "(" * 5000 + ")" * 5000, "nested"),
    ("grammar", "start: a", "unknown name"),
    ("grammar", 'start: a\na: a "x"', "no text matches it"),
    ("grammar", "what is this", "Expected ::="),
]


@pytest.mark.parametrize(("kind", "text", "says"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_cannot_be_followed_is_refused_in_a_clause(kind, text, says):
    answer = ask(kind, text)
    assert not answer.grammar and answer.error
    assert says in answer.error
    assert len(answer.error) <= ERROR_CHARS_MAX and "\n" not in answer.error


def test_what_explodes_after_its_beginning_is_refused():
    names = {f"name {number}": {"type": "integer"} for number in range(800)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    assert "max is 2000" in ask("json", json.dumps(schema)).error
    assert ask("json", json.dumps(schema | {"required": list(names)})).grammar


def test_a_property_may_be_called_like_a_keyword():
    schema = {"type": "object", "properties": {"minProperties": {"type": "integer"}}}
    assert ask("json", json.dumps(schema)).grammar


def test_a_schema_that_multiplies_is_refused():
    ways = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(14)]
    assert "too large" in ask("json", json.dumps({"type": "object", "allOf": ways})).error


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "[a-z]+@[a-z]+"),
        ("choice", json.dumps(["да", 'a "b"\n', "🛑"])),
        ("grammar", 'start: "a" | b\nb: "x" b?'),
        ("grammar", 'root ::= "a" | [0-9]+'),
    ],
)
def test_every_kind_has_grammars(kind, text):
    assert ask(kind, text).grammar


def follows(schema, value) -> bool:
    grammar = ask("json", json.dumps(schema)).grammar
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    return all(map(matcher.consume_token, json.dumps(value).encode())) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("date", "2024-02-29", True),
        ("date", "2023-02-29", False),
        ("date", "1900-02-29", False),
        ("date", "2000-02-29", True),
        ("date", "0000-05-01", False),
        ("date", "0007-12-31", True),
        ("time", "23:59:60Z", False),
        ("time", "23:59:59.5+02:00", True),
        ("date-time", "2023-02-28T10:00:59Z", True),
        ("date-time", "2023-02-29T10:00:00Z", False),
        ("date-time", "2023-02-28T10:00:60Z", False),
    ],
)
def test_dates_and_times_are_those_that_readers_take(name, text, is_one):
    schema = {"type": "string", "format": name}
    assert follows(schema, text) is is_one
    assert follows({"type": "array", "items": schema}, [text]) is is_one


def test_what_only_looks_like_a_format_is_left_alone():
    value = {"format": "date"}
    assert follows({"const": value}, value)
    assert follows({"type": "string", "format": "date", "pattern": "^2"}, "2023-02-29")


def test_blanks_are_bounded_unless_asked_for():
    def blanks_of(answer):
        return json.loads(answer.grammar)["grammars"][0]["json_schema"]["x-guidance"]

    assert "{0,20}" in blanks_of(ask("json", ANYTHING))["whitespace_pattern"]
    assert blanks_of(ask("json", ANYTHING, ""))["whitespace_flexible"] is False
    assert blanks_of(ask("json", ANYTHING, " "))["whitespace_pattern"] == " "
    assert ask("json", ANYTHING, "((").error == "unclosed group"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("No call.", True),
        ('See <f=a>{"n": 1}</f> and more', True),
        ('See <f=a>{"n": "x"}</f>', False),
        ("See <f=b>", False),
    ],
)
def test_structural_tags_hold_json_within_text(text, fits):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tags = {"triggers": ["<f"], "structures": [{"begin": "<f=a>", "schema": schema, "end": "</f>"}]}
    answer = answer_to(GrammarQuestion("tags", json.dumps(tags)))
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, answer.grammar, log_level=0)
    tokens = tokenizer.tokenize_str(text)
    taken = matcher.try_consume_tokens(tokens) == len(tokens)
    assert (taken and matcher.is_accepting()) == fits
