"""Users of the coordinator that comes after this one: whoever asks this one for its model, or reads
an answer that only it can know, is led on to it. Keys are checked here first, as for any request,
and there again."""

import json
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from molink.api.body import REFUSED_BODY, SERVED_ELSEWHERE
from molink.api.callers import CALLERS, caller_of
from molink.api.errors import ApiError
from molink.control.registry.succession import Successor
from molink.succession.forwarding import forwarded, short_answer

MODELS_PATH = "/v1/models"

ANSWER_PATHS = ("/generate/", "/v1/responses/")
"""Below them answers are asked for by ids, of which each coordinator knows its own."""


def users_led_on(
    successor: Callable[[], Successor | None], is_handed_over: Callable[[], bool]
) -> Middleware:
    """Middleware inside the check of keys: what this coordinator does not serve and its successor
    does is answered by that; so are names of both once it has handed all PCs over."""

    @web.middleware
    async def led_on(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_handed_over() and (after := successor()) is not None:
            request[SERVED_ELSEWHERE] = after.models
        try:
            response = await handler(request)
        except ApiError as error:
            after = successor() if error.status == 404 else None
            if after is None or not _is_for(after, request):
                raise
            return await _answered_by(after, request)
        if request.path == MODELS_PATH and (after := successor()) is not None:
            return await _with_models_of(after, request, response)
        return response

    return led_on


def _is_for(after: Successor, request: web.Request) -> bool:
    """Whether a request that was answered with 404 may be the successor's."""
    if (refused := request.get(REFUSED_BODY)) is not None:
        return refused.model in after.models
    if request.path.startswith(f"{MODELS_PATH}/"):
        return request.match_info.get("model") in after.models
    return request.method in ("GET", "DELETE") and request.path.startswith(ANSWER_PATHS)


async def _answered_by(after: Successor, request: web.Request) -> web.StreamResponse:
    """Its answer; the body counts as held until that has ended."""
    refused = request.get(REFUSED_BODY)
    body = None if refused is None else refused.raw
    budget, caller, size = request.app[CALLERS].budget, caller_of(request), len(body or b"")
    budget.take(caller, size)
    try:
        return await forwarded(request, Path(after.folder), after.port, body)
    finally:
        budget.give_back(caller, size)


async def _with_models_of(
    after: Successor, request: web.Request, response: web.StreamResponse
) -> web.StreamResponse:
    """The list of models with those behind that only the successor serves; as it is while that one
    is away."""
    if not isinstance(response, web.Response) or response.body is None:
        return response
    told = json.loads(bytes(response.body))  # type: ignore[arg-type]
    try:
        where = Path(after.folder), after.port, request.method, request.path_qs, request.headers
        _, body = await short_answer(*where)
        known = {one["id"] for one in told["data"]}
        told["data"] += [one for one in json.loads(body)["data"] if one["id"] not in known]
    except (ApiError, ValueError, KeyError, TypeError):
        return response
    return web.json_response(told)
