"""What is served, whether it can serve now, and on which nodes: the GET endpoints."""

from typing import Any

from aiohttp import web

from molink.api.errors import RETRY_AFTER_S
from molink.api.requests import check_model
from molink.serving.service import GenerationService, ModelCard

__all__ = ["get_cluster", "get_health", "get_model", "get_models"]


async def get_models(service: GenerationService, request: web.Request) -> web.Response:
    """OpenAI's list of models; there is one, with an entry for each of its names."""
    card = service.card
    entries = [_entry(card, name) for name in card.names]
    return web.json_response({"object": "list", "data": entries})


async def get_model(service: GenerationService, request: web.Request) -> web.Response:
    """OpenAI's entry of one model, 404 for any other name."""
    card = service.card
    name = request.match_info["model"]
    check_model(name, card)
    return web.json_response(_entry(card, name))


async def get_health(service: GenerationService, request: web.Request) -> web.Response:
    """200 when requests are accepted, 503 with the reason when not."""
    reason = service.unready_reason
    if reason is None:
        return web.json_response({"status": "ok"})
    return web.json_response(
        {"status": "unready", "reason": reason},
        status=503,
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


async def get_cluster(service: GenerationService, request: web.Request) -> web.Response:
    """Stages, links and load of the ring."""
    return web.json_response(service.cluster())


def _entry(card: ModelCard, name: str) -> dict[str, Any]:
    """OpenAI's model object with vLLM's fields, the length under the names that clients look for
    (vLLM's, OpenRouter's), and what a client of token ids needs."""
    return {
        "id": name,
        "object": "model",
        "created": card.created_unix_s,
        "owned_by": "molink",
        "root": card.name,
        "parent": None,
        "max_model_len": card.model_len_max,
        "context_length": card.model_len_max,
        "vocabulary_size": card.vocabulary_size,
    }
