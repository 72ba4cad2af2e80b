"""The aiohttp application: routes, middlewares and what handlers share."""

from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from molink.api.access import Access, access_checked, add_rate_limit_headers
from molink.api.answers import LIVE
from molink.api.anthropic.endpoint import post_count_tokens, post_messages
from molink.api.backend import Backend
from molink.api.body import BODY_BYTES_MAX
from molink.api.callers import CALLERS, Callers
from molink.api.chat import ChatFormat
from molink.api.errors import errors_in_shape, is_anthropic
from molink.api.generate import get_generated, post_generate
from molink.api.grammars.checker import GrammarChecker
from molink.api.grammars.fields import GRAMMARS
from molink.api.headers.cors import CorsRules, add_cors_headers, preflight_answered
from molink.api.headers.ignored_fields import IGNORED, IGNORED_HEADER, STRICT
from molink.api.headers.request_id import (
    REQUEST_ID_HEADER,
    SEQUENCES,
    request_id_of,
    request_identified,
)
from molink.api.headers.serving import serving_headers
from molink.api.metrics.route import Metrics, add_metrics_route
from molink.api.openai.chat import post_chat_completions
from molink.api.openai.completions import post_completions
from molink.api.openai.logprobs import TokenTexts
from molink.api.openai.responses.background import BACKGROUND, BackgroundAnswers
from molink.api.openai.responses.endpoint import (
    delete_response,
    get_response,
    post_cancel,
    post_input_tokens,
    post_responses,
)
from molink.api.openapi.routes import add_openapi_routes
from molink.api.page.routes import add_page_routes
from molink.api.status import (
    get_cluster,
    get_events,
    get_findings,
    get_health,
    get_model,
    get_models,
    get_requests,
)
from molink.api.vllm.tokenize import post_detokenize, post_tokenize
from molink.serving.answers.live_state import LiveState
from molink.serving.service import GenerationService

ANTHROPIC_REQUEST_ID_HEADER = "request-id"
"""Name under which Anthropic's clients look for the request's id."""


def create_app(
    service: GenerationService,
    access: Access | None = None,
    *,
    strict: bool = False,
    shares_cache: bool = False,
    chat_format: ChatFormat | None = None,
    metrics: Metrics | None = None,
    live: LiveState | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> web.Application:
    """The application that serves `service`. Without `access` only this machine is let in.

    `chat_format`: how the model writes calls and reasoning; without it, as its template shows;
    `strict` refuses fields that would be ignored; `shares_cache`: keys share cached KV;
    `metrics`: given where they are also exported; `live`: store of answers that can be read again.

    Run it with `start_api`, which sets what cancellation needs.
    """
    access = access or Access()
    middlewares = [
        request_identified,
        preflight_answered(access.cors),
        errors_in_shape,
        access_checked(access, service.events),
    ]
    app = web.Application(middlewares=middlewares, client_max_size=body_bytes_max)
    app[CALLERS] = Callers(access.keys, shares_cache)
    app[STRICT] = strict
    if live is not None:
        app[LIVE] = live
    app.on_response_prepare.append(add_rate_limit_headers)
    app.on_response_prepare.append(_headers_added(access.cors))
    app[GRAMMARS] = GrammarChecker()
    app[BACKGROUND] = BackgroundAnswers()
    app.on_shutdown.append(_end_background)
    app.on_cleanup.append(_close_checker)
    app.add_routes(_routes(service, chat_format or ChatFormat.of(service.card.tokenizer)))
    add_page_routes(app, service)
    add_metrics_route(app, metrics or Metrics(service))
    add_openapi_routes(app)
    return app


def _routes(service: GenerationService, chat_format: ChatFormat) -> list[web.RouteDef]:
    """Paths that clients of `service` ask, metrics, pages and the schema beside."""
    backend = Backend(service, TokenTexts(service), chat_format)
    return [
        web.post("/generate", partial(post_generate, backend)),
        web.get("/generate/{id:.+}", partial(get_generated, service)),
        web.post("/v1/completions", partial(post_completions, backend)),
        web.post("/v1/chat/completions", partial(post_chat_completions, backend)),
        web.post("/v1/responses", partial(post_responses, backend)),
        web.post("/v1/responses/input_tokens", partial(post_input_tokens, backend)),
        web.post("/v1/responses/{id}/cancel", partial(post_cancel, backend)),
        web.get("/v1/responses/{id:.+}", partial(get_response, backend)),
        web.delete("/v1/responses/{id:.+}", delete_response),
        web.post("/v1/messages", partial(post_messages, backend)),
        web.post("/v1/messages/count_tokens", partial(post_count_tokens, backend)),
        web.post("/tokenize", partial(post_tokenize, backend)),
        web.post("/detokenize", partial(post_detokenize, service)),
        web.get("/v1/models", partial(get_models, service)),
        web.get("/v1/models/{model:.+}", partial(get_model, service)),
        web.get("/health", partial(get_health, service)),
        web.get("/cluster", partial(get_cluster, service)),
        web.get("/cluster/requests", partial(get_requests, service)),
        web.get("/cluster/events", partial(get_events, service)),
        web.get("/cluster/findings", partial(get_findings, service)),
    ]


async def _end_background(app: web.Application) -> None:
    await app[BACKGROUND].close()


async def _close_checker(app: web.Application) -> None:
    await app[GRAMMARS].close()


def _headers_added(
    cors: CorsRules,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Signal: add the request's id, what served it, the names of ignored fields, and what browsers
    ask for."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[REQUEST_ID_HEADER] = request_id_of(request)
        if is_anthropic(request.path):
            response.headers[ANTHROPIC_REQUEST_ID_HEADER] = request_id_of(request)
        response.headers.update(serving_headers(request.get(SEQUENCES, ())))
        if (ignored := request.get(IGNORED)) is not None:
            response.headers[IGNORED_HEADER] = ignored
        add_cors_headers(cors, request, response)

    return add
