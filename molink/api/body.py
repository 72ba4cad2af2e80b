"""From the bytes of a request to a checked body, with one sentence about the first thing that is
wrong.

The content type is not looked at: `curl -d '{...}'` sends a form's and means JSON. Python's parser
is more generous than JSON (it takes NaN and Infinity, and half a surrogate pair, which no tokenizer
can encode), so these are refused here.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from molink.api.errors import ApiError
from molink.api.fields import MESSAGE_UNSUPPORTED, drop_unsupported
from molink.api.mistakes import first_mistake

__all__ = ["parse_json_object", "read_body"]

Body = TypeVar("Body", bound=BaseModel)


async def read_body(
    request: web.Request, schema: type[Body], unsupported: Mapping[str, tuple[Any, ...]]
) -> Body:
    """The request's JSON as a `schema`, its unsupported fields taken out; ApiError when it is
    not one."""
    fields = drop_unsupported(parse_json_object(await _read(request)), unsupported)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_plain_message(i, one) for i, one in enumerate(messages)]
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise first_mistake(error) from None


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError:
        raise ApiError(
            "The body does not match its headers: check Content-Encoding and Transfer-Encoding."
        ) from None


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`."""
    try:
        text = raw.decode()
        parsed = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(
            "The body holds half of a surrogate pair: send text that is valid Unicode."
        ) from None
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from None
    if not isinstance(parsed, dict):
        raise ApiError("The body must be a JSON object: send fields in braces.")
    return parsed


def _refuse_constant(name: str) -> NoReturn:
    raise ApiError(f"The body holds {name}, which is not a JSON number: send a finite one.")


def _not_json(error: Exception) -> ApiError:
    match error:
        case json.JSONDecodeError():
            why = f"{error.msg} at character {error.pos}"
        case UnicodeDecodeError():
            why = "it is not UTF-8"
        case RecursionError():
            why = "it is nested too deeply"
        case _:
            why = "a number in it is too long"
    return ApiError(f"The body is not valid JSON ({why}): send one JSON object.")


def _plain_message(index: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return drop_unsupported(message, MESSAGE_UNSUPPORTED, where=f"messages.{index}.")
