"""What is wrong with a field, in our own words: one sentence that names it and says what to do.

Pydantic finds the mistake; its words are for the programmer of a schema ("Input should be a valid
dictionary or instance of Message"), not for whoever sent the request.
"""

from typing import Any

from pydantic import ValidationError

from molink.api.errors import ApiError

__all__ = ["NAME_CHARS_SHOWN", "first_mistake"]

NAME_CHARS_SHOWN = 60
"""A client's own text is repeated in an error only up to here."""

_WORDS = {
    "missing": "is missing: add it to the request",
    "bool_type": "must be true or false: send one of them, without quotes",
    "int_type": "must be a whole number: send one, without quotes and without a fraction",
    "float_type": "must be a number: send one that is finite, without quotes",
    "finite_number": "must be a number: send one that is finite, without quotes",
    "string_type": "must be a string: send it in quotes",
    "list_type": "must be a list: send it in brackets",
    "model_type": "must be an object: send its fields in braces",
    "greater_than_equal": "must be {ge} or more: send a larger number",
    "greater_than": "must be more than {gt}: send a larger number",
    "less_than_equal": "must be {le} or less: send a smaller number",
    "literal_error": "must be {expected}: nothing else is served",
    "too_short": "is too short: send at least {min_length}",
    "too_long": "holds {actual_length} entries: send at most {max_length}",
    "string_too_short": "is empty: send at least {min_length} character",
    "string_too_long": "is too long: send at most {max_length} characters",
    "value_error": "{error}",
}
"""By pydantic's name of the mistake, filled in with what it knows of the field."""

_OTHERWISE = "cannot be read: correct it or leave it out"


def first_mistake(error: ValidationError) -> ApiError:
    """The answer for the first mistake that was found."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = ".".join(str(part) for part in first["loc"])[:NAME_CHARS_SHOWN] or None
    if first["type"] == "extra_forbidden":
        return ApiError(
            f"'{param}' is not a field of this request: leave it out or correct its name.",
            param=param,
            code="unknown_parameter",
        )
    name = f"'{param}'" if param else "The body"
    return ApiError(f"{name} {_words(first['type'], first.get('ctx', {}))}.", param=param)


def _words(kind: str, known: dict[str, Any]) -> str:
    return _WORDS.get(kind, _OTHERWISE).format(**{k: _plain(value) for k, value in known.items()})


def _plain(value: Any) -> Any:
    """A bound as people write it: 1, not 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
