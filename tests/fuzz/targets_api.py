"""What a user of the API can send, and what a server can answer to MoLink's own clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict, CIMultiDictProxy

from molink.agents_api.weights_routes import _range
from molink.api.access import Access, _admit
from molink.api.body import _checked
from molink.api.callers import CALLERS, Callers
from molink.api.chat import ChatFormat, chat_prompt
from molink.api.chat.answer_grammar import chat_requests
from molink.api.errors import ApiError
from molink.api.generate import _job_of
from molink.api.grammars.fields import GRAMMARS, grammar_question
from molink.api.openai import completions
from molink.api.openai.chat_schemas import ChatBody
from molink.api.openai.conversation import conversation_of
from molink.api.requests import prompt_list, tokens_of_prompt
from molink.api.schemas import CompletionBody, GenerateBody
from molink.client.api_client import _events, server_sentence
from molink.errors import UserError
from molink.serving.events import EventLedger
from molink.serving.grammar_check import GrammarQuestion
from tests.api.conftest import CARD
from tests.fuzz.target import Target, json_seeds

LOOP = asyncio.new_event_loop()

SAMPLING = {
    "max_tokens": 8,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "seed": 1,
    "stop": ["x"],
    "stop_token_ids": [7],
    "stream": False,
    "user": "u",
}


def _awaited(run: Callable[[bytes], Awaitable[object]]) -> Callable[[bytes], object]:
    return lambda data: LOOP.run_until_complete(run(data))


GET = make_mocked_request("GET", "/")
"""Making one takes a millisecond, so all inputs share it."""


ANY_GRAMMAR = "{}"


class _Grammars:
    """Checker to which every grammar is right."""

    async def grammar(self, question: GrammarQuestion, param: str) -> str:
        return ANY_GRAMMAR


ASKED_APP = web.Application()
ASKED_APP[GRAMMARS] = _Grammars()
ASKED_APP[CALLERS] = Callers()
ASKING = make_mocked_request("POST", "/generate", app=ASKED_APP)


async def _generate(data: bytes) -> object:
    return await _job_of(ASKING, _checked(bytearray(data), GenerateBody), CARD)


async def _completions(data: bytes) -> None:
    body = _checked(bytearray(data), CompletionBody)
    for prompt in prompt_list(body.prompt):
        completions._requests(await tokens_of_prompt(prompt, CARD), body, CARD, ANY_GRAMMAR, 0)


async def _chat(data: bytes) -> None:
    body = _checked(bytearray(data), ChatBody)
    grammar_question(body)
    prompt = await chat_prompt(conversation_of(body), CARD, ChatFormat())
    await chat_requests(ASKING, body, CARD, prompt, 1)


def _weights_range(data: bytes) -> None:
    GET._headers = CIMultiDictProxy(CIMultiDict(Range=data.decode("latin-1")))
    start, stop = _range(GET, "model.safetensors", 1000)
    assert 0 <= start < stop <= 1000


# -- who may ask ---------------------------------------------------------------------------------


class _NoKeys:
    """Keys of a server that has made none."""

    clock = staticmethod(lambda: 0.0)

    def holds_keys(self) -> bool:
        return False

    def find(self, secret: str) -> None:
        return None


APP = web.Application()
APP[CALLERS] = Callers()
POST = make_mocked_request("POST", "/generate", app=APP)
HEADERS = ("Host", "Origin", "Authorization", "Content-Type", "Sec-Fetch-Site")


def _access(data: bytes) -> None:
    """A line for each header, to a server on loopback and to one beyond it."""
    lines = data.decode("latin-1").split("\n")
    POST._headers = CIMultiDictProxy(CIMultiDict(zip(HEADERS, lines, strict=False)))
    POST._cache.clear()
    for access in (Access(), Access(_NoKeys()), Access(_NoKeys(), required=True)):
        try:
            _admit(access, POST, EventLedger())
        except ApiError:
            continue


# -- the other way round --------------------------------------------------------------------------


class _Content:
    """Body of an answer that has come."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self.data


async def _event_stream(data: bytes) -> None:
    """What `molink chat` makes of a server's answer."""
    async for event in _events(_Content(data)):
        assert isinstance(event, dict)


TARGETS = (
    Target(
        "api-generate",
        _awaited(_generate),
        (ApiError,),
        json_seeds(
            {"prompt": "Once", **SAMPLING, "logprobs": 2},
            {"prompt_token_ids": [1, 2, 3], "max_tokens": 1, "stream": True},
        ),
        "json",
    ),
    Target(
        "api-completions",
        _awaited(_completions),
        (ApiError,),
        json_seeds({"model": "tiny/model", "prompt": ["a", "b"], **SAMPLING, "n": 2}),
        "json",
    ),
    Target(
        "api-chat",
        _awaited(_chat),
        (ApiError,),
        json_seeds(
            {
                "messages": [
                    {"role": "system", "content": "Be short."},
                    {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "n"},
                    {"role": "assistant", "content": "a", "tool_calls": []},
                ],
                **SAMPLING,
                "tools": [],
                "logprobs": True,
                "top_logprobs": 3,
                "stream_options": {"include_usage": True},
            }
        ),
        "json",
    ),
    Target(
        "api-access",
        _access,
        (),
        (
            b"127.0.0.1:8000\nhttp://127.0.0.1:8000\nBearer molink-sk-x\napplication/json",
            b"[::1]:8000\n\nBasic x\ntext/plain; charset=x",
            b"localhost",
        ),
    ),
    Target(
        "weights-range",
        _weights_range,
        (ApiError,),
        (b"bytes=64-191", b"bytes=-5", b"bytes=900-", b"bytes=0-0,5-6", b""),
    ),
    Target(
        "client-events",
        _awaited(_event_stream),
        (UserError, ValueError),
        (b'data: {"text": "a"}\n\ndata: [DONE]\n\n', b'data: {"error": {"message": "m"}}\n\n'),
    ),
    Target(
        "client-refusal",
        lambda data: server_sentence(500, data),
        (),
        json_seeds({"error": {"message": "no"}}),
        "json",
    ),
)
