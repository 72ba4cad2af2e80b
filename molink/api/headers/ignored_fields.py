"""Ignored fields of a request, named in the header `X-MoLink-Ignored`.

Clients of other servers send what only those servers know (`user`, `store`, `metadata`,
`service_tier`, `cache_prompt`, ...). None of it changes an answer, so it is accepted; but a
misspelt `max_token` looks the same, and its sender should be able to find it. With `--strict` such
a request is refused.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from molink.api.errors import NAME_CHARS_SHOWN, unknown_field
from molink.api.schemas import LeftOut

IGNORED_HEADER = "X-MoLink-Ignored"

NAMES_SHOWN_MAX = 20
"""Most fields in the header, of at most NAME_CHARS_SHOWN each: proxies take headers of 4 KiB."""

STRICT = web.AppKey("strict", bool)
"""Whether a field that would be ignored is refused."""

IGNORED = web.RequestKey("ignored", str)

_UNSHOWN = re.compile(r"[^!-+\-.-~]")
"""Characters that no name in a header's list may hold: spaces, commas, all that is not ASCII."""

_PLACES = re.compile(r"\.\d+(?=\.)")


def unknown_fields(value: Any, where: str = "") -> Iterator[str]:
    """Paths of all fields that a checked body holds beyond its schema, such as `messages.2.mood`,
    and of parts that are left out, such as `tools.0.web_search`. Null is no value."""
    if isinstance(value, LeftOut) and value.is_left_out:
        yield where + value.type
    elif isinstance(value, BaseModel):
        extra = value.model_extra or {}
        yield from (where + name for name, given in extra.items() if given is not None)
        for name, inner in value.__dict__.items():
            yield from unknown_fields(inner, f"{where}{name}.")
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for place, inner in enumerate(value):
            yield from unknown_fields(inner, f"{where}{place}.")


def note_ignored(request: web.Request, body: BaseModel) -> None:
    """Note for the answer's headers what of a body is ignored. Raises ApiError where the server is
    strict."""
    names = unknown_fields(body)
    if request.app.get(STRICT, False) and (first := next(names, None)) is not None:
        raise unknown_field(first[:NAME_CHARS_SHOWN])
    if shown := _header(names):
        request[IGNORED] = shown


def _header(names: Iterable[str]) -> str:
    """`user, messages.mood`; each name once, without places in lists."""
    found: dict[str, None] = {}
    for name in names:
        if len(found) == NAMES_SHOWN_MAX:
            return ", ".join([*found, "..."])
        found[_UNSHOWN.sub("?", _PLACES.sub("", name))[:NAME_CHARS_SHOWN]] = None
    return ", ".join(found)
