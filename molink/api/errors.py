"""Every failure as one sentence in OpenAI's error shape.

`{"error": {"message", "type", "param", "code"}}` is what API users' libraries already parse, so
requests to any path are answered with it: a wrong field (400), an unknown path (404), a ring that
cannot serve (503), a bug of ours (500). A bug's traceback goes to the log and never to the client.
"""

import logging
from typing import Any

from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler

from molink.errors import DeadlineError, InvalidRequestError, MolinkError, RingError, StageError

__all__ = [
    "NAME_CHARS_SHOWN",
    "RETRY_AFTER_S",
    "ApiError",
    "as_api_error",
    "error_body",
    "errors_in_openai_shape",
]

RETRY_AFTER_S = 5
"""`Retry-After` of a 503: a ring that starts or is rebuilt needs seconds, not minutes."""

NAME_CHARS_SHOWN = 60
"""A client's own text is repeated in an error only up to here."""

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


def as_api_error(error: Exception) -> ApiError:
    """The answer to give for an exception; logs the traceback of one that is a bug."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(str(error), param=error.param)
        case DeadlineError():
            return ApiError(str(error), status=504, param="timeout_s", code="deadline_exceeded")
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


def error_body(error: ApiError) -> dict[str, Any]:
    """The error object that OpenAI's clients parse."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    kind = "requests" if error.status == 429 else kind
    return {
        "error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    }


@web.middleware
async def errors_in_openai_shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every exception of a handler with an error object."""
    try:
        return await handler(request)
    except ClientConnectionResetError:
        raise  # the client has gone
    except web.HTTPException as error:
        return _response(_of_http_exception(request, error))
    except Exception as error:
        return _response(as_api_error(error))


def _response(error: ApiError) -> web.Response:
    return web.json_response(error_body(error), status=error.status, headers=error.headers)


def _of_http_exception(request: web.Request, error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals: unknown path, wrong method."""
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                f"{request.path} does not take {request.method}: use {allowed}.",
                status=405,
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
        case web.HTTPNotFound():
            return ApiError(
                f"There is nothing at {request.path}: try /v1/chat/completions, /v1/completions, "
                "/v1/models, /generate, /health or /cluster.",
                status=404,
                code="not_found",
            )
        case _:
            return ApiError(f"The request was refused: {error.reason}.", status=error.status)
