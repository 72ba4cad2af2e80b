"""`POST /tokenize` and `POST /detokenize`: what a prompt is in token ids, and back.

Clients that count tokens before they ask, and gateways that bill by them, know these two from
vLLM's server. A prompt or a conversation is encoded just as the endpoints that generate encode it;
here an empty one is fine.
"""

from functools import partial

from aiohttp import web
from pydantic import Field

from molink.api.answers import json_text
from molink.api.backend import Backend
from molink.api.body import checked_body
from molink.api.chat import ChatFormat, chat_prompt
from molink.api.errors import ApiError
from molink.api.openai.chat_schemas import ChatBody, Message, ToolBody
from molink.api.openai.conversation import conversation_of
from molink.api.requests import (
    checked_token_ids,
    encoded,
    on_loop_or_thread,
    tokenizer_of,
)
from molink.api.schemas import MESSAGES_MAX, TOOLS_MAX, Body
from molink.json_object import JsonObject
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationService


class TokenizeBody(Body):
    """Body of `POST /tokenize`, with one of `prompt` and `messages`."""

    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=MESSAGES_MAX)
    tools: list[ToolBody] | None = Field(default=None, max_length=TOOLS_MAX)
    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, such as "enable_thinking"."""
    add_generation_prompt: bool | None = None
    """Default true unless `continue_final_message`. False: it ends behind the last message."""
    continue_final_message: bool | None = None
    """Default false. True: messages end within the last one."""
    add_special_tokens: bool | None = None
    """Default: true for a prompt; false for messages, whose chat template writes its own."""
    return_token_strs: bool | None = None
    """Default false. True: the vocabulary's entry of each token, too."""


class DetokenizeBody(Body):
    """Body of `POST /detokenize`."""

    tokens: list[int]


async def post_tokenize(backend: Backend, request: web.Request) -> web.Response:
    """Token ids of one prompt or conversation, and how many fit the model."""
    card = backend.card
    async with checked_body(request, TokenizeBody, card) as body:
        token_ids = await _token_ids(body, card, backend.format)
        token_strs = await _token_strs(token_ids, card) if body.return_token_strs else None
    answer = {
        "count": len(token_ids),
        "max_model_len": card.model_len_max,
        "tokens": token_ids,
        "token_strs": token_strs,
    }
    return web.json_response(answer, dumps=json_text)


async def _token_ids(body: TokenizeBody, card: ModelCard, format: ChatFormat) -> tuple[int, ...]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(
            "'prompt' and 'messages' exclude each other: send exactly one of them.", param="prompt"
        )
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return await encoded(tokenizer_of(card, "prompt"), body.prompt, add_special_tokens=special)
    chat = ChatBody.model_construct(**body.__dict__)
    prompt = await chat_prompt(conversation_of(chat), card, format)
    if not body.add_special_tokens:
        return prompt.token_ids
    return await encoded(tokenizer_of(card, "messages"), prompt.text, add_special_tokens=True)


async def _token_strs(token_ids: tuple[int, ...], card: ModelCard) -> list[str]:
    convert = partial(tokenizer_of(card, "prompt").convert_ids_to_tokens, list(token_ids))
    return await on_loop_or_thread(len(token_ids), convert)


async def post_detokenize(service: GenerationService, request: web.Request) -> web.Response:
    """Text of token ids, special tokens included."""
    card = service.card
    async with checked_body(request, DetokenizeBody, card) as body:
        tokenizer = tokenizer_of(card, "tokens")
        token_ids = list(checked_token_ids(body.tokens, card, "tokens")) if body.tokens else []
        decode = partial(tokenizer.decode, token_ids)
        text = await on_loop_or_thread(len(token_ids), decode)
    return web.json_response({"prompt": text}, dumps=json_text)
