"""JSON schemas as clients write them, without what demands nothing of an answer."""

from collections.abc import Mapping
from typing import Any

from molink.serving.grammar_check import VALUES

FORMATS = (
    *("date", "date-time", "duration", "email", "hostname", "ipv4"),
    *("ipv6", "time", "unknown", "uri", "uuid"),
)
"""Formats of strings that llguidance follows."""

NOTES = frozenset({"$comment", "default", "description", "example", "examples", "title"})
"""Keywords for whoever reads a schema: of eighty tools they are longer than a grammar may be."""

DEFINITIONS = ("$defs", "definitions")

NAMED = (*DEFINITIONS, "dependentRequired", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose values are objects with names of the user's."""


def without_notes(schema: Any) -> Any:
    """A schema without all that demands nothing: notes, keywords with null or an impossible value,
    and formats that no grammar follows (`int64`, `url`), which are notes in JSON Schema."""
    if isinstance(schema, list):
        return [without_notes(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _kept(key, value) for key, value in schema.items() if not _is_note(key, value)}


def _is_note(key: str, value: Any) -> bool:
    if key in NAMED:
        return not isinstance(value, Mapping)
    if key == "required":
        return not required_of({key: value})
    is_unknown = key == "format" and isinstance(value, str) and value not in FORMATS
    return is_unknown or key in NOTES or (value is None and key != "const")


def _kept(key: str, value: Any) -> Any:
    if key in NAMED:
        return {name: {} if one is None else without_notes(one) for name, one in value.items()}
    return value if key in VALUES else without_notes(value)


def required_of(schema: Mapping[str, Any]) -> list[str]:
    """The names that a schema requires; clients write null, and true within a property."""
    names = schema.get("required")
    is_names = isinstance(names, list) and all(isinstance(one, str) for one in names)
    return list(names or ()) if is_names else []
