"""Every failure as one sentence in the error shape of the API that was called.

OpenAI's `{"error": {"message", "type", "param", "code"}}` is what API users' libraries already
parse, so requests to any path are answered with it but those to Anthropic's, whose clients expect
Anthropic's: a wrong field (400), an unknown path (404), more requests than can be begun in time
(429), a ring that cannot serve (503), a bug of ours (500). A bug's traceback goes to the log and
never to the client.

What OpenAI and Anthropic serve and we do not is named when it is asked for. It is a 404, as from
vLLM's server, not a 501: clients send whatever fails with 5xx twice more.
"""

import logging
import math
from collections.abc import Iterable, Mapping

from aiohttp import ClientConnectionResetError, hdrs, web
from aiohttp.typedefs import Handler

from molink.api.openapi.answers import AnthropicError, ErrorAnswer, ErrorKind
from molink.errors import (
    DeadlineError,
    InvalidRequestError,
    MolinkError,
    OverloadedError,
    RingError,
    RowsRefusedError,
    StageError,
)

RETRY_AFTER_S = 5
"""`Retry-After` of a 503: a ring that starts or is rebuilt needs seconds, not minutes."""

NAME_CHARS_SHOWN = 60
"""A client's own text is repeated in an error only up to here."""

TEXT_PATHS = "/v1/chat/completions, /v1/responses, /v1/messages and /v1/completions"

UNSERVED: Mapping[str, str] = {
    "/classify": "Classification is",
    "/embeddings": "Embeddings are",
    "/pooling": "Pooling is",
    "/rerank": "Reranking is",
    "/score": "Scoring is",
    "/v1/assistants": "Assistants are",
    "/v1/audio": "Audio is",
    "/v1/complete": "Anthropic's text completions are",
    "/v1/containers": "Containers are",
    "/v1/embeddings": "Embeddings are",
    "/v1/evals": "Evals are",
    "/v1/fine_tuning": "Fine-tuning is",
    "/v1/images": "Images are",
    "/v1/messages/batches": "Batches are",
    "/v1/moderations": "Moderation is",
    "/v1/realtime": "Realtime sessions are",
    "/v1/rerank": "Reranking is",
    "/v1/responses/compact": "Compaction is",
    "/v1/score": "Scoring is",
    "/v1/skills": "Skills are",
    "/v1/threads": "Threads are",
    "/v1/uploads": "Uploads are",
    "/v1/vector_stores": "Vector stores are",
    "/v1/videos": "Videos are",
}
"""Words for what other servers have at a path and below it, with the verb."""

NOT_KEPT = ("/v1/chat/completions", "/v1/conversations", "/v1/responses")
"""Paths below which other servers look answers up that they have stored."""

ANTHROPIC_PATHS = ("/v1/complete", "/v1/messages")

ANTHROPIC_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Type of an error by status; all others are invalid_request_error below 500, else api_error."""

logger = logging.getLogger(__name__)


class ApiError(MolinkError):
    """Raised when an HTTP request is answered with an error; the message is one sentence for the
    client."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}


def unknown_field(param: str | None) -> ApiError:
    """Sentence about a field that no schema knows."""
    return ApiError(
        f"'{param}' is not a field of this request: leave it out or correct its name.",
        param=param,
        code="unknown_parameter",
    )


def answers_not_kept() -> ApiError:
    """Error for whoever looks an answer up where none is kept."""
    sentence = "Answers are not kept here: send the whole conversation with each request."
    return ApiError(sentence, status=404, code="unsupported_endpoint")


def as_api_error(error: Exception) -> ApiError:
    """The answer to give for an exception; logs the traceback of one that is a bug."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(str(error), param=error.param)
        case DeadlineError():
            return ApiError(str(error), status=504, param="timeout_s", code="deadline_exceeded")
        case OverloadedError(retry_s=retry_s):
            retry = {"Retry-After": str(max(1, math.ceil(retry_s)))}
            return ApiError(str(error), status=429, code="overloaded", headers=retry)
        case RowsRefusedError():
            return ApiError(str(error), status=500, code="rows_refused")
        case RingError() | StageError():
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            return ApiError(str(error), status=503, code="ring_unavailable", headers=retry)
        case _:
            logger.error("a request failed unexpectedly", exc_info=error)
            return ApiError(
                "The server failed on this request: try again, and look into its log if it stays.",
                status=500,
                code="internal_error",
            )


def error_body(error: ApiError) -> ErrorAnswer:
    """The error object that OpenAI's clients parse."""
    kind: ErrorKind = "invalid_request_error" if error.status < 500 else "server_error"
    if error.status == 429:
        kind = "requests"
    return {
        "error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    }


def anthropic_error_body(error: ApiError) -> AnthropicError:
    """The error object that Anthropic's clients parse."""
    otherwise = "invalid_request_error" if error.status < 500 else "api_error"
    kind = ANTHROPIC_KINDS.get(error.status, otherwise)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


@web.middleware
async def errors_in_shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every exception of a handler with an error object."""
    try:
        return await handler(request)
    except ClientConnectionResetError:
        if request.transport is not None and not request.transport.is_closing():
            raise  # The answer breaks off on purpose.
        return web.Response()  # Nobody is there to read it; raised, it would be logged as a fault.
    except web.HTTPException as error:
        return _response(request, _http_error(request, error))
    except Exception as error:  # A bug: one request's 500, whatever it raised.
        return _response(request, as_api_error(error))


def _response(request: web.Request, error: ApiError) -> web.Response:
    if request.method == hdrs.METH_OPTIONS:  # Its answer is in the headers.
        return web.Response(status=error.status, headers=error.headers)
    body = anthropic_error_body(error) if is_anthropic(request.path) else error_body(error)
    return web.json_response(body, status=error.status, headers=error.headers)


def is_anthropic(path: str) -> bool:
    """Whether Anthropic's clients ask there, and expect Anthropic's words."""
    return _is_below(path, ANTHROPIC_PATHS)


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _http_error(request: web.Request, error: web.HTTPException) -> ApiError:
    """Answer for aiohttp's own refusals: unknown path, wrong method."""
    match error:
        case web.HTTPMethodNotAllowed() if request.path not in UNSERVED:
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                f"{request.path} does not take {request.method}: use {allowed}.",
                status=405,
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
        case web.HTTPNotFound() | web.HTTPMethodNotAllowed():
            return _nothing_at(request.path)
        case _:
            return ApiError(f"The request was refused: {error.reason}.", status=error.status)


def _nothing_at(path: str) -> ApiError:
    """Error about a path that is not served."""
    subject = next((UNSERVED[one] for one in UNSERVED if _is_below(path, [one])), None)
    if subject is not None:
        sentence = f"{subject} not served here: this server generates text, at {TEXT_PATHS}."
        return ApiError(sentence, status=404, code="unsupported_endpoint")
    if _is_below(path, NOT_KEPT):
        return answers_not_kept()
    return ApiError(
        f"There is nothing at {path[:NAME_CHARS_SHOWN]}: try {TEXT_PATHS}, or /v1/models, "
        "/generate, /tokenize, /health, /cluster or /metrics; in a browser / and /docs.",
        status=404,
        code="not_found",
    )
