"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: one answer in Anthropic's words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from molink.api.anthropic.breakpoints import wishes_of
from molink.api.anthropic.conversation import conversation_of
from molink.api.anthropic.schemas import CountTokensBody, MessagesBody
from molink.api.anthropic.writer import MessageWriter
from molink.api.backend import Backend
from molink.api.body import checked_body
from molink.api.chat import chat_prompt
from molink.api.chat.answer_grammar import chat_requests
from molink.api.chat.typed_answer import answer_typed
from molink.api.grammars.fields import Question, schema_question
from molink.api.headers.request_id import request_id_of
from molink.api.requests import token_budget

TOO_LONG = "prompt is too long: {prompt_tokens} tokens > {length} maximum"
"""Anthropic's very sentence: its clients read both numbers, and shorten the conversation."""

EDITS: Mapping[str, Any] = {"context_management": {"applied_edits": []}}
"""How the conversation was shortened, for a client that wants it to be: it never is."""


async def post_messages(backend: Backend, request: web.Request) -> web.StreamResponse:
    """Answer one request, with as many tokens of `max_tokens` as the model's length leaves."""
    card = backend.card
    async with checked_body(request, MessagesBody, card) as body:
        asked = _format_asked_for(body)
        prompt = await chat_prompt(conversation_of(body), card, backend.format)
        size = len(prompt.token_ids)
        left = token_budget(None, size, card, param="messages", too_long=TOO_LONG)
        asked_tokens = left if body.max_tokens is None else body.max_tokens
        stops = body.model_copy(update={"stop": body.stop_sequences or body.stop})
        max_tokens = min(asked_tokens, left)
        (job,) = await chat_requests(request, stops, card, prompt, max_tokens, also=asked)
        job = replace(job, wishes=await wishes_of(body, prompt, card) or job.wishes)
        writer = MessageWriter(
            f"msg_{request_id_of(request)}",
            card.shown_name,
            size,
            is_cut=asked_tokens > left,
            beside=EDITS if "context_management" in (body.model_extra or {}) else {},
        )
    stream = bool(body.stream)
    return await answer_typed(request, backend.service, job, prompt, writer, stream=stream)


def _format_asked_for(body: MessagesBody) -> Question | None:
    within = body.output_config.format if body.output_config else None
    name, form = (
        ("output_config.format", within) if within else ("output_format", body.output_format)
    )
    return schema_question(form.schema_, name) if form else None


async def post_count_tokens(backend: Backend, request: web.Request) -> web.Response:
    """How many tokens the prompt of a request has."""
    card = backend.card
    async with checked_body(request, CountTokensBody, card) as body:
        prompt = await chat_prompt(conversation_of(body), card, backend.format)
    return web.json_response({"input_tokens": len(prompt.token_ids)})
