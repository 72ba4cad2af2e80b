"""From the bytes of a request to a checked body, with one sentence about the first mistake.

A body is bounded before it is held: in bytes, in time, and with all others that are held
(`callers`). A long one is parsed and checked in a thread.

Python's parser is more generous than JSON (it takes NaN and Infinity, and half a surrogate pair,
which no tokenizer can encode), so these are refused here.

A field that would change the answer and is not served (`openai.refused_fields`) is dropped when its
value is one that means "as usual" and refused otherwise. One that no schema knows is ignored, and
named in the answer's headers (`headers.ignored_fields`), or refused with `--strict`.

Pydantic finds the mistake; its words are for the programmer of a schema ("Input should be a valid
dictionary or instance of Message"), so the client gets our own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from pydantic import ValidationError

from molink.api.callers import CALLERS, caller_of
from molink.api.errors import NAME_CHARS_SHOWN, ApiError, unknown_field
from molink.api.headers.ignored_fields import note_ignored
from molink.api.openai.refused_fields import OTHER_LENGTHS
from molink.api.requests import check_model, in_worker
from molink.api.schemas import Body
from molink.json_object import JsonObject
from molink.serving.model_card import ModelCard
from molink.utf8 import utf8_text

BODY_BYTES_MAX = 32 * 2**20
"""Bytes of a body. A prompt of 128k tokens is 0.6 MB of text; agents add a megabyte of tools, and
in their history what files and pictures were. The longest takes 0.15 s to parse."""

BODY_S_MAX = 30.0
"""Seconds for a whole body to come: 1 MiB over a line of 0.3 Mbit/s, the longest over 9."""

ON_LOOP_BYTES_MAX = 64 * 2**10
"""The worst body of this size takes 2 ms to parse."""

Checked = TypeVar("Checked", bound=Body)


@dataclass(frozen=True, slots=True)
class RefusedBody:
    """Body of a request for a model that is not served here."""

    model: str | None
    raw: bytes


REFUSED_BODY = web.RequestKey("refused_body", RefusedBody)
"""Another coordinator may serve that model."""

SERVED_ELSEWHERE: web.RequestKey[tuple[str, ...]] = web.RequestKey("served_elsewhere", tuple)
"""Names of models that another coordinator serves in place of this one."""

CONTAINERS_MAX = 80_000
"""Lists and objects of a body: five for each message of the longest conversation, or those of two
megabytes of tools. A MiB can hold 350,000 empty ones, which take Python's collector 150 ms; so many
take 20."""

DEPTH_MAX = 128
"""Lists and objects within one another: tools' arguments and JSON schemas take ten or twenty. What
Python still parses may be too deep for what is done with it later, in a thread or an answer."""

_WORDS = {
    "missing": "is missing: add it to the request",
    "bool_type": "must be true or false: send one of them, without quotes",
    "int_type": "must be a whole number: send one, without quotes and without a fraction",
    "float_type": "must be a number: send one that is finite, without quotes",
    "finite_number": "must be a number: send one that is finite, without quotes",
    "string_type": "must be a string: send it in quotes",
    "list_type": "must be a list: send it in brackets",
    "dict_type": "must be an object: send its fields in braces",
    "string_pattern_mismatch": "must be 1 to 128 letters, digits or any of _ . : / -: change it",
    "model_type": "must be an object: send its fields in braces",
    "greater_than_equal": "must be {ge} or more: send a larger number",
    "greater_than": "must be more than {gt}: send a larger number",
    "less_than_equal": "must be {le} or less: send a smaller number",
    "union_tag_invalid": "is of the type '{tag}', which is not served: use {expected_tags}",
    "literal_error": "must be {expected}: nothing else is served",
    "too_short": "is too short: send at least {min_length}",
    "too_long": "holds {actual_length} entries: send at most {max_length}",
    "string_too_short": "is empty: send at least {min_length} character",
    "string_too_long": "is too long: send at most {max_length} characters",
    "value_error": "{error}",
}
"""Words for each of pydantic's mistakes by name, filled in with what it knows of the field."""

_OTHERWISE = "cannot be read: correct it or leave it out"


@asynccontextmanager
async def checked_body(
    request: web.Request, schema: type[Checked], card: ModelCard
) -> AsyncIterator[Checked]:
    """The request's JSON as a `schema`; its bytes count as held until the block ends, which should
    do what takes long with it. Raises ApiError when it is no such JSON, asks for another model than
    the card's, or too much is held."""
    budget, caller = request.app[CALLERS].budget, caller_of(request)
    raw = bytearray()

    def read() -> Checked:
        body = _checked(raw, schema)
        note_ignored(request, body)
        return body

    try:
        async for piece in body_pieces(request, request.client_max_size):
            budget.take(caller, len(piece))
            raw += piece
        is_short = len(raw) <= ON_LOOP_BYTES_MAX
        body = read() if is_short else await in_worker(read)
        try:
            check_model(body.model, card, request.get(SERVED_ELSEWHERE, ()))
        except ApiError:
            request[REFUSED_BODY] = RefusedBody(body.model, bytes(raw))
            raise
        yield body
    finally:
        budget.give_back(caller, len(raw))


async def body_pieces(
    request: web.Request, bytes_max: int, within_s: float = BODY_S_MAX
) -> AsyncIterator[bytes]:
    """A body as it comes, at most `bytes_max` bytes of it.

    Raises ApiError: 413 for more, at once where they are announced; 408 when it has not come
    `within_s`; 400 when it is not encoded as its headers say.
    """
    _check_size(request.content_length or 0, bytes_max)
    deadline, size = asyncio.get_running_loop().time() + within_s, 0
    while piece := await _next_piece(request, deadline):
        size += len(piece)
        _check_size(size, bytes_max)
        yield piece


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ApiError(
            f"The body is over {bytes_max} bytes: send a shorter one.",
            status=413,
            code="body_too_large",
        )


async def _next_piece(request: web.Request, deadline: float) -> bytes:
    try:
        async with asyncio.timeout_at(deadline):
            return await request.content.readany()
    except TimeoutError:
        raise ApiError(
            "The body did not come in time: send all of it at once.",
            status=408,
            code="body_too_slow",
        ) from None
    except web.RequestPayloadError:
        raise ApiError(
            "The body does not match its headers: check Content-Encoding and Transfer-Encoding."
        ) from None


def _checked(raw: bytearray, schema: type[Checked]) -> Checked:
    fields = _drop_unsupported(parse_json_object(raw), schema.unsupported)
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _first_mistake(error) from None


def parse_json_object(raw: bytes | bytearray) -> JsonObject:
    """The JSON object in `raw`."""
    _check_containers(raw)
    try:
        text = utf8_text(raw)
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
    _check_depth(parsed)
    return parsed


def _check_containers(raw: bytes | bytearray) -> None:
    """Count lists and objects, without brackets in strings where that matters. Raises ApiError for
    too many."""
    if _brackets(raw) <= CONTAINERS_MAX:
        return
    pieces = raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
    if sum(_brackets(piece) for piece in pieces[::2]) > CONTAINERS_MAX:
        raise ApiError(
            f"The body holds too many lists and objects: send at most {CONTAINERS_MAX}.",
            code="body_too_large",
        )


def _check_depth(parsed: JsonObject) -> None:
    """Look how deep lists and objects stand within one another. Raises ApiError for too deep."""
    level: list[Any] = [parsed]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ApiError(
        f"The body holds more than {DEPTH_MAX} lists and objects within one another: send a "
        "flatter one."
    )


def _brackets(raw: bytes | bytearray) -> int:
    return raw.count(b"[") + raw.count(b"{")


def _refuse_constant(name: str) -> NoReturn:
    raise ApiError(f"The body holds {name}, which is not a JSON number: send a finite one.")


def _not_json(error: Exception) -> ApiError:
    match error:
        case json.JSONDecodeError():
            why = f"{error.msg} at character {error.pos}"
        case RecursionError():
            why = "it is nested too deeply"
        case _:
            is_encoded = "UTF-8" in str(error)
            why = str(error) if is_encoded else "a number in it is too long"
    return ApiError(f"The body is not valid JSON ({why}): send one JSON object.")


def _drop_unsupported(body: JsonObject, unsupported: Mapping[str, tuple[Any, ...]]) -> JsonObject:
    """`body` without unsupported fields that carry their default, and with a length that has
    another server's name under ours. Raises ApiError for others."""
    kept = {}
    for name, value in body.items():
        if name in unsupported:
            _check_default(name, value, unsupported[name])
        else:
            kept[name] = value
    lengths = [body[name] for name in OTHER_LENGTHS if name in unsupported and name in body]
    if kept.get("max_tokens") is None and lengths:
        kept["max_tokens"] = lengths[0]
    return kept


def _check_default(name: str, value: Any, defaults: tuple[Any, ...]) -> None:
    if value is None or any(_is_same(value, one) for one in defaults):
        return
    raise ApiError(
        f"'{name}' is not supported by this server: leave it out.",
        param=name,
        code="unsupported_parameter",
    )


def _is_same(value: Any, other: Any) -> bool:
    """1 and 1.0 are the same number; true is none."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _first_mistake(error: ValidationError) -> ApiError:
    """The answer for the first mistake that was found."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = (str(part) for part in first["loc"])
    param = ".".join(one for one in path if not one.startswith("<"))[:NAME_CHARS_SHOWN] or None
    if first["type"] == "extra_forbidden":
        return unknown_field(param)
    name = f"'{param}'" if param else "The body"
    return ApiError(f"{name} {_words(first['type'], first.get('ctx', {}))}.", param=param)


def _words(kind: str, known: dict[str, Any]) -> str:
    return _WORDS.get(kind, _OTHERWISE).format(**{k: _plain(value) for k, value in known.items()})


def _plain(value: Any) -> Any:
    """A bound as people write it: 1, not 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
