"""The table of paths, and the limits around it."""

from aiohttp import web

from molink.api.context import SERVICE, TOKEN_TEXTS
from molink.api.errors import errors_in_openai_shape
from molink.api.generate import post_generate
from molink.api.openai.chat import post_chat_completions
from molink.api.openai.completions import post_completions
from molink.api.status import get_cluster, get_health, get_model, get_models
from molink.api.token_texts import TokenTexts
from molink.serving.service import GenerationService

__all__ = ["BODY_BYTES_MAX", "create_app"]

BODY_BYTES_MAX = 8 * 2**20
"""A million token ids or eight million characters: over any context length, and little for a
server to hold."""


def create_app(
    service: GenerationService, *, body_bytes_max: int = BODY_BYTES_MAX
) -> web.Application:
    """The application that serves `service`; run it with `start_api`, which sets what
    cancellation needs."""
    app = web.Application(middlewares=[errors_in_openai_shape], client_max_size=body_bytes_max)
    app[SERVICE] = service
    app[TOKEN_TEXTS] = TokenTexts(service)
    app.add_routes(
        [
            web.post("/generate", post_generate),
            web.post("/v1/completions", post_completions),
            web.post("/v1/chat/completions", post_chat_completions),
            web.get("/v1/models", get_models),
            web.get("/v1/models/{model:.+}", get_model),
            web.get("/health", get_health),
            web.get("/cluster", get_cluster),
        ]
    )
    return app
