"""`/v1/responses`: one answer to a list of items, which can be read again by its id."""

from functools import partial

from aiohttp import web

from molink.api.answers import LIVE, json_text, kept_answer, logged
from molink.api.backend import Backend
from molink.api.body import BODY_BYTES_MAX, checked_body
from molink.api.chat import ChatPrompt, chat_prompt
from molink.api.chat.answer_grammar import chat_requests
from molink.api.chat.typed_answer import answer_typed, write_kept
from molink.api.errors import ApiError
from molink.api.grammars.fields import Question, schema_question
from molink.api.headers.request_id import kept_id_of
from molink.api.openai.responses.background import (
    BACKGROUND,
    BackgroundAnswer,
    read_kept,
    read_on,
)
from molink.api.openai.responses.conversation import conversation_of
from molink.api.openai.responses.schemas import ResponsesBody
from molink.api.openai.responses.tools import offered_tools
from molink.api.openai.responses.writer import ResponseWriter
from molink.api.requests import in_worker, token_budget
from molink.api.schemas import KEPT, MESSAGES_MAX
from molink.json_object import JsonObject
from molink.serving.answers.kept_answer import KeptAnswer
from molink.serving.model_card import SamplingDefaults
from molink.serving.service import GenerationRequest

LOGPROBS = "message.output_text.logprobs"
"""Name that a request includes for log-probabilities; other names change nothing."""


DIGITS_MAX = 9
"""Digits of an event's number."""


async def post_responses(backend: Backend, request: web.Request) -> web.StreamResponse:
    """Answer one request. Without a limit the answer may fill what is left of the model's
    length."""
    card = backend.card
    async with checked_body(request, ResponsesBody, card) as body:
        body = await _whole_conversation(backend, request, body)
        asked, logprobs = _format_asked_for(body), _logprobs_wanted(body)
        prompt = await chat_prompt(conversation_of(body), card, backend.format)
        wanted = body.max_tokens if body.max_output_tokens is None else body.max_output_tokens
        max_tokens = token_budget(wanted, len(prompt.token_ids), card, param="input")
        (job,) = await chat_requests(
            request, body, card, prompt, max_tokens, also=asked, logprobs=logprobs
        )
        answer_id = f"resp_{kept_id_of(request)}"
        if body.store is not False:
            job = logged(request, job, answer_id, _as_kept(body))
        repeated = _repeated(body, card.sampling) | {"store": job.log is not None}
        tools = offered_tools(body.tools or ())
        writer = ResponseWriter(answer_id, card.shown_name, repeated, backend.texts, tools)
    stream = bool(body.stream)
    if body.background:
        answer = BackgroundAnswer(writer, body.linger_s)
        return await _in_background(request, backend, job, prompt, answer, stream=stream)
    return await answer_typed(request, backend.service, job, prompt, writer, stream=stream)


async def _in_background(
    request: web.Request,
    backend: Backend,
    job: GenerationRequest,
    prompt: ChatPrompt,
    answer: BackgroundAnswer,
    *,
    stream: bool,
) -> web.StreamResponse:
    """Begin an answer that outlives this connection, and give what there is of it."""
    if job.log is None:
        raise ApiError(
            "An answer in the background must be kept, and this one is not: ask without 'store': "
            "false, or without 'background'.",
            param="background",
        )
    answers = request.app[BACKGROUND]
    answers.check_room()
    answers.start(request, backend.service, job, prompt, answer)
    with answer.reading():
        await answer.has_begun()
        if stream:
            return await read_on(request, answer)
    return web.json_response(answer.writer.body, dumps=json_text)


async def get_response(backend: Backend, request: web.Request) -> web.StreamResponse:
    """The answer of which `POST /v1/responses` gave the id, as far as it is; with `stream` its
    events, from the one behind `starting_after` on, until its end."""
    stream = request.query.get("stream", "false").lower() == "true"
    first = _starting_after(request) + 1
    if stream and (answer := request.app[BACKGROUND].find(request)) is not None:
        return await read_on(request, answer, first)
    kept = await kept_answer(request)
    body = await _asked(kept)
    if not stream:
        written = await _written_again(backend, kept, body)
        return web.json_response(written, dumps=json_text)
    prompt = await chat_prompt(conversation_of(body), backend.card, backend.format)
    writer = _writer(backend, kept, body)
    return await read_kept(request, backend.card, prompt, writer, first)


def _starting_after(request: web.Request) -> int:
    """Number of the last event that the client has seen; -1: none."""
    given = request.query.get("starting_after", "")
    if not given:
        return -1
    if not given.isdecimal() or len(given) > DIGITS_MAX:
        raise ApiError(
            "'starting_after' is the 'sequence_number' of the last event that came.",
            param="starting_after",
        )
    return int(given)


async def post_cancel(backend: Backend, request: web.Request) -> web.Response:
    """End an answer in the background, or one that an earlier coordinator has begun, and give what
    there is of it."""
    answer = request.app[BACKGROUND].find(request)
    if answer is not None:
        await answer.end()
    kept = await kept_answer(request)
    if await request.app[LIVE].stop(kept.number):
        kept = await kept_answer(request)
    if kept.ending is None:
        raise ApiError(
            "This response is not in the background of this server: end its own connection, or "
            "wait for its end.",
            param="id",
        )
    written = await _written_again(backend, kept, await _asked(kept))
    return web.json_response(written, dumps=json_text)


async def delete_response(request: web.Request) -> web.Response:
    """Forget the answer of which `POST /v1/responses` gave the id."""
    kept = await kept_answer(request)
    if kept.ending is None:
        raise ApiError("The response has not ended: wait for its end, then delete it.", param="id")
    request.app[LIVE].forget(kept.owner, kept.answer_id)
    deleted = {"id": kept.answer_id, "object": "response", "deleted": True}
    return web.json_response(deleted)


async def post_input_tokens(backend: Backend, request: web.Request) -> web.Response:
    """How many tokens the prompt of a request has."""
    async with checked_body(request, ResponsesBody, backend.card) as body:
        body = await _whole_conversation(backend, request, body)
        prompt = await chat_prompt(conversation_of(body), backend.card, backend.format)
    counted = {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}
    return web.json_response(counted)


async def _written_again(backend: Backend, kept: KeptAnswer, body: ResponsesBody) -> JsonObject:
    """The answer to `body`, as far as it is kept."""
    prompt = await chat_prompt(conversation_of(body), backend.card, backend.format)
    writer = _writer(backend, kept, body)
    await write_kept(prompt, kept, backend.card, writer)
    if kept.ending is not None and "completed_at" in writer.body:
        writer.body["completed_at"] = int(kept.ending.at_unix_s)
    return writer.body


def _writer(backend: Backend, kept: KeptAnswer, body: ResponsesBody) -> ResponseWriter:
    """Writer of a kept answer, from its beginning."""
    created = {"store": True, "created_at": int(kept.created_unix_s)}
    repeated = _repeated(body, backend.card.sampling) | created
    tools = offered_tools(body.tools or ())
    return ResponseWriter(kept.answer_id, backend.card.shown_name, repeated, backend.texts, tools)


async def _whole_conversation(
    backend: Backend, request: web.Request, body: ResponsesBody
) -> ResponsesBody:
    """`body` behind the conversation and the answer of its `previous_response_id`. What is kept is
    always a whole conversation, so one step back is enough."""
    if not body.previous_response_id:
        return body
    kept = await kept_answer(request, body.previous_response_id)
    if not kept.asked or kept.ending is None:
        raise ApiError(
            "'previous_response_id' names no response that has ended: wait for its end, or send "
            "the whole conversation.",
            param="previous_response_id",
        )
    before = await _asked(kept)
    said = (await _written_again(backend, kept, before))["output"]
    items = ResponsesBody.model_validate({"input": said}).input if said else []
    whole = body.model_copy(update={"input": [*before.input, *items, *body.input]})
    if len(whole.input) > MESSAGES_MAX or len(_as_kept(whole).encode()) > BODY_BYTES_MAX:
        raise ApiError(
            "The conversation behind 'previous_response_id' has become too long: begin a new one "
            "with a summary of it.",
            param="previous_response_id",
            code="body_too_large",
        )
    return whole


async def _asked(kept: KeptAnswer) -> ResponsesBody:
    return await in_worker(partial(ResponsesBody.model_validate_json, kept.asked))


def _as_kept(body: ResponsesBody) -> str:
    return body.model_dump_json(exclude_unset=True, by_alias=True, context=KEPT)


def _logprobs_wanted(body: ResponsesBody) -> int | None:
    is_included = LOGPROBS in (body.include or ())
    return body.top_logprobs or 0 if is_included or body.top_logprobs else None


def _format_asked_for(body: ResponsesBody) -> Question | None:
    format = body.text.format if body.text else None
    if format is None or format.type == "text":
        return None
    return schema_question(format.schema_, "text.format")


def _repeated(body: ResponsesBody, usual: SamplingDefaults) -> JsonObject:
    """Fields of the request that the response repeats, defaults filled in."""
    text, reasoning = body.text, body.reasoning
    format = text.format.model_dump(by_alias=True) if text and text.format else {"type": "text"}
    return {
        "background": bool(body.background),
        "instructions": body.instructions or None,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "service_tier": "default",
        "temperature": usual.temperature if body.temperature is None else body.temperature,
        "text": {"format": format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": usual.top_p if body.top_p is None else body.top_p,
    }
