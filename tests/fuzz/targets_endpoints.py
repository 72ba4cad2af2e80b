"""Whole endpoints: from a body's bytes to an answer, in front of a model that calls a tool.

The other targets end with a checked body; here what is in it goes through templates, grammars of
tools and the writers of answers as well.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from jinja2 import Environment

from molink.api.admin import INTAKE_PATH, INVITES_PATH, add_admin_routes
from molink.api.answers import json_text
from molink.api.anthropic.endpoint import post_count_tokens, post_messages
from molink.api.backend import Backend
from molink.api.callers import CALLERS, Callers
from molink.api.chat import ChatFormat
from molink.api.errors import ApiError
from molink.api.grammars.fields import GRAMMARS
from molink.api.openai.chat import post_chat_completions
from molink.api.openai.logprobs import TokenTexts
from molink.api.openai.responses.endpoint import post_responses
from molink.api.vllm.tokenize import post_detokenize, post_tokenize
from molink.control.registry.rules import check_wishes
from molink.report.orders import CachesCleared, IntakeChanged, InviteMade, NodeOrdered
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent, TokenLogprob
from tests.api.conftest import CARD, CharTokenizer
from tests.api.scripted import CALL, TEMPLATE
from tests.fuzz.target import Target, json_seeds

LOOP = asyncio.new_event_loop()

TOKENS_OF_PROMPT_MAX = 20_000
"""Longer than any input."""

PIECE_CHARS = 7
"""Of the answer's text: marks are cut in two."""

ANSWER = f"<think>so</think>Yes.{CALL}"

Post = Callable[[web.Request], Awaitable[object]]


class _Tokenizer(CharTokenizer):
    """Tokenizer whose template is compiled once."""

    _template = Environment().from_string(TEMPLATE)

    def apply_chat_template(self, conversation: list[dict[str, Any]], **variables: Any) -> str:
        return self._template.render(messages=conversation, **variables)


class _Model:
    """Service whose model thinks, speaks and calls a tool, whatever it is asked."""

    card: ModelCard = replace(
        CARD, model_len_max=TOKENS_OF_PROMPT_MAX, tokenizer=_Tokenizer(TEMPLATE)
    )
    unready_reason = None
    overload = None

    async def until_taken(self) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        asked = request.sampling.logprobs is not None
        logprobs = (TokenLogprob(65, -0.5, ((65, -0.5),)),) if asked else ()
        for at in range(0, len(ANSWER), PIECE_CHARS):
            yield TokenEvent((65,), ANSWER[at : at + PIECE_CHARS], logprobs)
        yield TokenEvent((3,), "", logprobs, finish_reason="stop")


class _Grammars:
    """Checker to which every grammar is right."""

    async def grammar(self, question: GrammarQuestion, param: str) -> str:
        return "start: /.*/"


class _Body:
    """Body of a request that has come."""

    def __init__(self, data: bytes) -> None:
        self._pieces = [data]

    async def readany(self) -> bytes:
        return self._pieces.pop() if self._pieces else b""


APP = web.Application()
APP[CALLERS] = Callers()
APP[GRAMMARS] = _Grammars()
POST = make_mocked_request("POST", "/", app=APP)
"""Making one takes a millisecond, so all inputs share it."""


def _to(post: Post) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        POST._payload = _Body(data)
        POST._cache.clear()
        return LOOP.run_until_complete(post(POST))

    return run


MODEL = _Model()
FORMAT = ChatFormat(tool_parser="hermes", reasoning_parser="qwen3", takes_tools=True)
BACKEND = Backend(MODEL, TokenTexts(MODEL), FORMAT)


# -- orders of an operator ------------------------------------------------------------------------


class _Admin:
    """Orders that are all carried out, or refused where a wish is out of bounds."""

    async def drain(self, node_id: str, by: str) -> NodeOrdered:
        return NodeOrdered(id=node_id, name=node_id)

    resume = remove = drain

    async def invite(self, expires_s: float, uses: int, name: str, by: str) -> InviteMade:
        check_wishes(expires_s, uses, name)
        return InviteMade("i", "molink join", uses, time.time() + expires_s)

    def pause_intake(self, is_paused: bool, by: str) -> IntakeChanged:
        assert isinstance(is_paused, bool)
        return IntakeChanged(is_paused)

    def clear_caches(self, by: str) -> CachesCleared:
        return CachesCleared(1)


def _admin_handlers() -> dict[str, Post]:
    app = web.Application()
    add_admin_routes(app, _Admin())
    return {route.resource.canonical: route.handler for route in app.router.routes()}


ADMIN = _admin_handlers()


# -- grammars -------------------------------------------------------------------------------------


def _checked_grammar(kind: str, data: bytes) -> None:
    """What the process that checks grammars makes of any text."""
    text = data.decode(errors="replace")
    if kind == "choice":
        text = json_text(text.split("|"))
    answer = answer_to(GrammarQuestion(kind, text))
    assert bool(answer.grammar) != bool(answer.error)


# -- inputs ---------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x", None]}},
    "required": ["a"],
    "additionalProperties": False,
}
OPENAI_TOOL = {"name": "weather", "description": "d", "parameters": SCHEMA}
REASONING = {"type": "reasoning_text", "text": "x"}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
NAMED = {"type": "function", "function": {"name": "weather"}}
USER = [{"role": "user", "content": "Hi"}]
CALLED = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

RESPONSES = json_seeds(
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [], "content": [REASONING]},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "instructions": "Be short.",
        "tools": [{"type": "function", **OPENAI_TOOL}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "weather"}]},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
    },
    {"input": "Hi", "max_output_tokens": 8, "stream": True, "store": False, "top_logprobs": 2},
    {
        "input": "Hi",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "stream": True,
    },
    {"input": "Hi", "tools": [{"type": "function", **OPENAI_TOOL}], "tool_choice": "required"},
)
MESSAGES = json_seeds(
    {
        "max_tokens": 8,
        "system": [{"type": "text", "text": "Be short."}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}, USE]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["x"],
    },
    {
        "max_tokens": 100,
        "messages": USER,
        "stream": True,
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    {
        "max_tokens": 100,
        "messages": USER,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    },
)
CHAT = json_seeds(
    {
        "messages": [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": OPENAI_TOOL}],
        "tool_choice": NAMED,
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"a": 1},
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {
        "messages": USER,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
    {"messages": USER, "structured_outputs": {"choice": ["a", "b"]}, "n": 2, "logprobs": True},
)
TOKENIZE = json_seeds(
    {"prompt": "Once", "add_special_tokens": False, "return_token_strs": True},
    {"messages": USER, "tools": [{"type": "function", "function": OPENAI_TOOL}]},
)


def _endpoint(name: str, post: Post, seeds: tuple[bytes, ...]) -> Target:
    return Target(name, _to(post), (ApiError,), seeds, "json")


TARGETS = (
    _endpoint("api-responses", partial(post_responses, BACKEND), RESPONSES),
    _endpoint("api-messages", partial(post_messages, BACKEND), MESSAGES),
    _endpoint("api-count-tokens", partial(post_count_tokens, BACKEND), MESSAGES),
    _endpoint("api-chat-tools", partial(post_chat_completions, BACKEND), CHAT),
    _endpoint("api-tokenize", partial(post_tokenize, BACKEND), TOKENIZE),
    _endpoint(
        "api-detokenize",
        partial(post_detokenize, MODEL),
        json_seeds({"tokens": [1, 65, 66]}, {"tokens": [], "model": "tiny/model"}),
    ),
    _endpoint(
        "admin-invite",
        ADMIN[INVITES_PATH],
        json_seeds({"expires_s": 3600, "uses": 2, "name": "anna"}, {}),
    ),
    _endpoint("admin-intake", ADMIN[INTAKE_PATH], json_seeds({"paused": True})),
    Target(
        "grammar-json",
        partial(_checked_grammar, "json"),
        (),
        json_seeds(
            SCHEMA,
            {"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 3},
            {"$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}},
            {"type": "string", "pattern": "^a{2,5}$", "maxLength": 9},
        ),
        "json",
    ),
    Target(
        "grammar-regex",
        partial(_checked_grammar, "regex"),
        (),
        (rb"[a-c]{2,5}(x|yz)*\d+", rb"(?i:a|\p{L})+?", rb"\w{1,9}@(a\.)+"),
    ),
    Target("grammar-choice", partial(_checked_grammar, "choice"), (), (b"a|b", b"")),
    Target(
        "grammar-text",
        partial(_checked_grammar, "grammar"),
        (),
        (
            b'start: "a" b+\nb: /[0-9]{1,3}/ | start\n%ignore /[ ]/',
            b'root ::= "a" item{1,3}\nitem ::= [a-z]+ | root',
            b"start: %json " + json.dumps(SCHEMA).encode(),
        ),
    ),
)
