"""Parameters of one tool, for formats that write values as bare text.

`3` is a number or a string, and only the tool's JSON schema tells which. A value that may be a
string is one; everything else is JSON.
"""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

ALTERNATIVES = ("anyOf", "oneOf", "allOf")

ALTERNATIVES_MAX = 64
"""Schemas that are looked at for one parameter; they may refer to each other."""


class Parameters:
    """Parameters of one tool, by its schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        found = schema.get("properties")
        self.properties: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        """Schemas of the parameters by name."""

    def read(self, name: str, text: str) -> Any:
        """Value that the text of a parameter means."""
        kinds = [kind for one in self._alternatives(name) for kind in _own_kinds(one)]
        if not kinds or ("string" in kinds and not ("null" in kinds and text == "null")):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def is_text(self, name: str) -> bool:
        """Whether a value is bare text: it may be a string, or the schema does not say."""
        kinds = {kind for one in self._alternatives(name) for kind in _own_kinds(one)}
        return not kinds or "string" in kinds

    def of_text(self, name: str) -> Mapping[str, Any]:
        """Schema that a value which is bare text must follow; empty: any text does."""
        found = self._alternatives(name)
        return next((one for one in found if "string" in _own_kinds(one)), {})

    def _alternatives(self, name: str) -> list[Mapping[str, Any]]:
        """A parameter's schema, and those that it lets choose from or refers to."""
        found: list[Mapping[str, Any]] = []
        waiting = deque([self.properties.get(name)])
        while waiting and len(found) < ALTERNATIVES_MAX:
            schema = waiting.popleft()
            if isinstance(schema, Mapping) and not any(schema is one for one in found):
                found.append(schema)
                waiting.extend(one for word in ALTERNATIVES for one in _listed(schema.get(word)))
                waiting.append(self._referred(schema.get("$ref")))
        return found

    def _referred(self, reference: Any) -> Any:
        """The schema behind a reference into the tool's own schema; None: there is none."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: Any = self._schema
        for key in reference[2:].split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def _own_kinds(schema: Mapping[str, Any]) -> list[str]:
    """Types of JSON that a schema names itself."""
    kinds = schema.get("type")
    if kinds is not None:
        return [one for one in (kinds, *_listed(kinds)) if isinstance(one, str)]
    values = [schema["const"]] if "const" in schema else _listed(schema.get("enum"))
    return [_kind(value) for value in values]


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return "string" if isinstance(value, str) else "other"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
