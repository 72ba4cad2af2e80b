"""Status endpoints (GET): the model served, whether it can serve now, and on which nodes."""

from dataclasses import asdict, replace

from aiohttp import web

from molink.api.answers import json_text
from molink.api.callers import CALLERS
from molink.api.errors import NAME_CHARS_SHOWN, RETRY_AFTER_S, ApiError
from molink.api.openapi.answers import ModelEntry
from molink.api.requests import check_model
from molink.json_object import JsonObject
from molink.report.cluster import ClusterReport
from molink.report.plain import to_plain
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationService

SEQ_DIGITS_MAX = 15
"""Most digits of an event's number: more than any coordinator lives to give."""


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
    return web.json_response(cluster_body(service.cluster()))


async def get_requests(service: GenerationService, request: web.Request) -> web.Response:
    """Timelines of the requests that are live, and of the last that have ended; and whose keys
    there are, since timelines name keys by their ids."""
    keys = request.app[CALLERS].keys
    report = service.request_log.report()
    if keys is not None:
        report = replace(report, keys=keys.reports())
    return web.json_response(to_plain(report), dumps=json_text)


async def get_events(service: GenerationService, request: web.Request) -> web.Response:
    """Events of the cluster behind the event of which the query names the number."""
    after = request.query.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) <= SEQ_DIGITS_MAX):
        raise ApiError(
            f"'after' is the number of an event, not {after[:NAME_CHARS_SHOWN]!r}: send the 'next' "
            "of the answer before, or leave it out.",
            param="after",
        )
    return web.json_response(to_plain(service.events.report(int(after))), dumps=json_text)


async def get_findings(service: GenerationService, request: web.Request) -> web.Response:
    """All that stands out in the cluster now, the worst first."""
    return web.json_response(to_plain(service.watch.report()), dumps=json_text)


def cluster_body(report: ClusterReport) -> JsonObject:
    """The body of GET /cluster: the first ring's figures stand at the top, too, as those of the
    only ring did once."""
    body = to_plain(report)
    first = (
        body["rings"][0] if body["rings"] else {"model": report.model, "stages": [], "links": []}
    )
    return first | body


def _entry(card: ModelCard, name: str) -> ModelEntry:
    """OpenAI's model object with vLLM's fields. The length stands under the names of vLLM and of
    OpenRouter, as clients look for either; the vocabulary's size is for clients of token ids."""
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
        "default_sampling_params": asdict(card.sampling),
    }
