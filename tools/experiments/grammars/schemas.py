"""JSON schemas in the spirit of JSONSchemaBench, made from a few families and one seed.

That collection holds what people write: settings, API answers, events, forms. Here every keyword
that llguidance claims stands alone first, with several values, then with its neighbours, then in
schemas of the shapes that applications send. Texts and lists are bounded, so that a small model
that writes at random comes to an end.
"""

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

__all__ = ["FORMATS", "KEYWORDS", "Schema", "json_schemas"]

Schema = dict[str, Any]

SEED = 14
RANDOM_COUNT = 100
DEPTH_MAX = 3

FORMATS = (
    *("date-time", "time", "date", "duration", "email"),
    *("hostname", "ipv4", "ipv6", "uuid", "uri"),
)

KEYWORDS = frozenset(
    {
        *("anyOf", "oneOf", "allOf", "$ref", "$defs", "const", "enum", "type"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("properties", "additionalProperties", "patternProperties", "required"),
        *("minProperties", "maxProperties", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
"""What the library claims to follow; the schemas use all of it."""

WORD = {"type": "string", "minLength": 1, "maxLength": 8}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
NAMES = ("id", "name", "state", "count", "tags", "price", "when", "parent", "ok", "notes")


def json_schemas() -> list[tuple[str, Schema]]:
    """(name, schema), always the same, all different."""
    families = {
        "number": _numbers,
        "string": _strings,
        "value": _values,
        "array": _arrays,
        "object": _objects,
        "choice": _choices,
        "reference": _references,
        "application": _applications,
        "random": _random_schemas,
    }
    return [
        (f"{family}-{number}", schema)
        for family, schemas in families.items()
        for number, schema in enumerate(schemas())
    ]


def strict_object(**properties: Any) -> Schema:
    """As OpenAI's strict mode wants it: every property required, none beside them."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _numbers() -> Iterator[Schema]:
    for kind, (low, high) in product(("integer", "number"), ((0, 9), (-5, 5), (10, 12), (-99, -7))):
        yield {"type": kind, "minimum": low, "maximum": high}
        yield {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}
    for step in (2, 5, 7, 10):
        yield {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 200}
    yield {"type": "number", "minimum": 0.25, "maximum": 1.75}
    yield {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 4}
    yield {"type": "integer", "minimum": 0, "exclusiveMaximum": 1}


def _strings() -> Iterator[Schema]:
    for least, most in ((0, 0), (0, 5), (1, 1), (3, 8), (12, 12)):
        yield {"type": "string", "minLength": least, "maxLength": most}
    for pattern in (
        *("^[a-z]{2,6}$", "^[A-Z]{3}-[0-9]{4}$", r"^\d{3}$", "^(red|green|blue)$"),
        *(r"^\+?[0-9]{6,9}$", "^v[0-9]\\.[0-9]{1,2}$", '^[^"]{1,4}$', "^#[0-9a-f]{6}$"),
    ):
        yield {"type": "string", "pattern": pattern}
    yield {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 4}
    yield from (_formatted(name) for name in FORMATS)


def _formatted(name: str) -> Schema:
    """Some formats know no end: an e-mail address may be of any length."""
    return {"type": "string", "format": name, "maxLength": 40}


def _values() -> Iterator[Schema]:
    values: list[Any] = [0, -1.5, "да", 'a "quoted" \\ word', True, None, [], [1, "a"]]
    for value in (*values, {"a": {"b": []}}):
        yield {"const": value}
    yield {"enum": ["yes", "no"]}
    yield {"enum": [1, 2.5, "three", None, False, [4], {"five": 5}]}
    yield {"enum": [f"option {number}" for number in range(60)]}
    for kind in ("boolean", "null"):
        yield {"type": kind}
    yield {"type": ["integer", "null"], "minimum": 3, "maximum": 30}
    yield {"type": ["string", "boolean"], "maxLength": 4}


def _arrays() -> Iterator[Schema]:
    for least, most in ((0, 0), (0, 3), (1, 1), (2, 5), (6, 6)):
        yield {"type": "array", "items": DIGIT, "minItems": least, "maxItems": most}
        yield {"type": "array", "items": WORD, "minItems": least, "maxItems": most}
    yield {"type": "array", "prefixItems": [DIGIT, WORD], "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": [WORD], "items": DIGIT, "minItems": 1, "maxItems": 4}
    yield {"type": "array", "prefixItems": [DIGIT, DIGIT, DIGIT], "items": False}
    grid = {"type": "array", "items": DIGIT, "minItems": 3, "maxItems": 3}
    yield {"type": "array", "items": grid, "minItems": 3, "maxItems": 3}


def _objects() -> Iterator[Schema]:
    for count in (1, 2, 4, 8):
        properties = {name: DIGIT for name in NAMES[:count]}
        yield strict_object(**properties)
        yield {"type": "object", "properties": properties, "additionalProperties": False}
        some = list(properties)[::2]
        yield {"properties": properties, "required": some, "additionalProperties": False} | {
            "type": "object"
        }
    yield {"type": "object", "properties": {"a": WORD}, "required": ["a"]} | {
        "additionalProperties": DIGIT,
        "maxProperties": 3,
    }
    yield {"type": "object", "additionalProperties": WORD, "minProperties": 1, "maxProperties": 2}
    yield {"type": "object", "maxProperties": 0}
    mapping = {"^[a-f]{1,3}$": DIGIT}
    yield {"type": "object", "patternProperties": mapping, "additionalProperties": False} | {
        "maxProperties": 3
    }
    two = {"^n_[a-z]{2}$": DIGIT, "^s_[a-z]{2}$": WORD}
    yield {"type": "object", "patternProperties": two, "additionalProperties": False} | {
        "minProperties": 1,
        "maxProperties": 4,
    }
    yield {"type": "object", "required": ["late"], "additionalProperties": DIGIT} | {
        "maxProperties": 2
    }


def _choices() -> Iterator[Schema]:
    yield {"anyOf": [DIGIT, WORD]}
    yield {"oneOf": [{"type": "string", "maxLength": 4}, DIGIT, {"type": "null"}]}
    yield {"oneOf": [strict_object(kind={"const": kind}, **{kind: DIGIT}) for kind in ("a", "b")]}
    yield {"anyOf": [strict_object(a=DIGIT), strict_object(b=WORD), {"type": "null"}]}
    yield {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 12}, {"multipleOf": 3}]}
    left, right = strict_object(a=DIGIT), strict_object(b=WORD)
    for side in (left, right):
        del side["additionalProperties"]
    whole = {"allOf": [left, right], "properties": {"a": True, "b": True}}
    yield whole | {"additionalProperties": False}
    yield {"type": "string", "anyOf": [{"pattern": "^a[0-9]{2}$"}, {"pattern": "^b[0-9]{2}$"}]}
    yield {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 20}], "minimum": 0} | {
        "maximum": 25
    }


def _references() -> Iterator[Schema]:
    yield {"$ref": "#/$defs/digit", "$defs": {"digit": DIGIT}}
    pair = strict_object(left={"$ref": "#/$defs/word"}, right={"$ref": "#/$defs/word"})
    yield pair | {"$defs": {"word": WORD}}
    yield {"$ref": "#/definitions/word", "definitions": {"word": WORD}}
    node = strict_object(value=DIGIT, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})
    yield {"$ref": "#/$defs/node", "$defs": {"node": node}}
    children = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    yield strict_object(name=WORD, children=children)
    yield {"$ref": "#/$defs/small", "minimum": 4, "$defs": {"small": DIGIT}}


def _applications() -> Iterator[Schema]:
    money = {"type": "number", "minimum": 0, "maximum": 1000}
    yield strict_object(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120})
    yield strict_object(
        sentiment={"enum": ["positive", "neutral", "negative"]},
        confidence={"type": "number", "minimum": 0, "maximum": 1},
    )
    line = strict_object(item=WORD, quantity=DIGIT, price=money)
    lines = {"type": "array", "items": line, "minItems": 1, "maxItems": 3}
    yield strict_object(invoice=_formatted("uuid"), lines=lines, total=money)
    yield strict_object(
        title=WORD,
        start=_formatted("date"),
        end={"anyOf": [_formatted("date"), {"type": "null"}]},
        guests={"type": "array", "items": _formatted("email"), "maxItems": 2},
    )
    argument = strict_object(city=WORD, unit={"enum": ["celsius", "fahrenheit"]})
    yield strict_object(name={"const": "get_weather"}, arguments=argument)
    yield strict_object(
        host=_formatted("hostname"),
        address=_formatted("ipv4"),
        port={"type": "integer", "minimum": 1, "maximum": 65535},
        tls={"type": "boolean"},
    )
    step = strict_object(explanation=WORD, output=WORD)
    steps = {"type": "array", "items": step, "minItems": 1, "maxItems": 3}
    yield strict_object(steps=steps, final_answer=WORD)
    point = {"type": "array", "prefixItems": [money, money], "items": False, "minItems": 2}
    yield strict_object(
        type={"const": "Feature"},
        geometry=strict_object(type={"const": "Point"}, coordinates=point),
        properties={"type": "object", "additionalProperties": WORD, "maxProperties": 2},
    )
    rule = strict_object(op={"enum": ["<", "<=", "=", ">"]}, field=WORD, value=DIGIT)
    yield {"type": "array", "items": {"oneOf": [rule, {"type": "null"}]}, "maxItems": 3}
    yield strict_object(**{name: {"type": "boolean"} for name in NAMES})


def _random_schemas() -> Iterator[Schema]:
    random = Random(SEED)
    for number in range(RANDOM_COUNT):
        yield _random_object(random, 1 + number % DEPTH_MAX)


def _random_object(random: Random, depth: int) -> Schema:
    names = random.sample(NAMES, random.randint(1, 5))
    properties = {name: _random_value(random, depth - 1) for name in names}
    required = [name for name in names if random.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required} | {
        "additionalProperties": False
    }


def _random_value(random: Random, depth: int) -> Schema:
    if depth > 0 and random.random() < 0.6:
        if random.random() < 0.5:
            return _random_object(random, depth)
        items = _random_value(random, depth - 1)
        return {"type": "array", "items": items, "maxItems": random.randint(1, 3)}
    low = random.randint(-50, 50)
    return random.choice(
        [
            {"type": "string", "maxLength": random.randint(1, 10)},
            _formatted(random.choice(FORMATS)),
            {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 300)},
            {"enum": random.sample(NAMES, random.randint(1, 4))},
            {"anyOf": [{"type": "null"}, WORD]},
            {"type": "boolean"},
        ]
    )
