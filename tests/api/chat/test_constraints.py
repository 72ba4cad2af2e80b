"""Answers that must be calls, or match a grammar: what the grammar lets through, and that the
readers find it."""

import json

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer

from molink.api.chat import (
    ChatFormat,
    Conversation,
    Message,
    Reply,
    Tool,
    ToolChoice,
)
from molink.api.chat.constraints import after_thoughts
from molink.api.chat.format import TAGS
from molink.api.chat.prompt import PartReader
from molink.api.errors import ApiError
from molink.serving.service import TokenEvent
from tests.api.chat.test_tools import ASK, MODEL, TOOL, ScriptedService, card

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"days": {"type": "integer"}},
    },
)
TOOLS = (WEATHER, Tool("get_time"))
REQUIRED = ToolChoice("required")
BYTES = LLTokenizer("byte")

CALL = {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}
TIME = {"name": "get_time", "arguments": {}}


def tagged(*calls: dict) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def llama(call: dict) -> str:
    return json.dumps({"name": call["name"], "parameters": call["arguments"]})


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def conversation(choice: ToolChoice = REQUIRED, *, parallel: bool = True) -> Conversation:
    user = (Message("user", "hi"),)
    return Conversation(user, TOOLS, choice, parallel_tool_calls=parallel)


ALLOWED = [
    ("hermes", "none", tagged(CALL)),
    ("hermes", "none", tagged(CALL, TIME)),
    ("hermes", "qwen3", tagged(TIME)),
    ("hermes", "qwen3", "<think>\nHm </tool_call>\n</think>\n\n" + tagged(CALL)),
    ("llama3_json", "none", llama(CALL)),
    ("mistral", "none", json.dumps([CALL, TIME])),
]


@pytest.mark.parametrize(("tools", "reasoning", "text"), ALLOWED)
def test_a_forced_answer_is_read_as_calls(tools, reasoning, text):
    asked, form = conversation(), ChatFormat(tools, reasoning)
    constraint = form.constraint(asked, "")
    assert accepts(constraint.grammar, text)
    reader = PartReader(form.reader(asked, ""), asked, constraint.prefill)
    parts = [part for char in text for part in reader.push(TokenEvent((), char))]
    reply = Reply.of(parts + reader.push(TokenEvent((), "", finish_reason="stop")))
    assert reply.finish_reason == "tool_calls" and not reply.text
    assert {call.name for call in reply.tool_calls} <= {"get_weather", "get_time"}
    assert not reply.has_broken_call


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("hermes", "It rains."),
        ("hermes", tagged({"name": "nobody", "arguments": {}})),
        ("hermes", tagged({"name": "get_weather", "arguments": {}})),
        ("hermes", tagged({"name": "get_weather", "arguments": {"city": 5}})),
        ("hermes", tagged(CALL) + " and so on"),
        ("hermes", "<think>\nHm.\n</think>\n" + tagged(CALL)),
        ("llama3_json", llama(CALL) + llama(TIME)),
        ("mistral", "[]"),
    ],
)
def test_what_a_forced_answer_cannot_be(tools, text):
    assert not accepts(ChatFormat(tools).constraint(conversation(), "").grammar, text)


def test_a_named_tool_and_a_single_call():
    form = ChatFormat("hermes")
    named = form.constraint(conversation(ToolChoice("named", "get_time")), "").grammar
    assert accepts(named, tagged(TIME)) and not accepts(named, tagged(CALL))
    assert not accepts(named, tagged(TIME, TIME))
    single = form.constraint(conversation(parallel=False), "").grammar
    assert accepts(single, tagged(CALL)) and not accepts(single, tagged(CALL, CALL))


def test_thoughts_go_on_where_the_template_began_them():
    form = ChatFormat("hermes", "qwen3")
    begun = form.constraint(conversation(), "<think>\n").grammar
    assert accepts(begun, "Hm.</think>\n\n" + tagged(CALL)) and not accepts(begun, tagged(CALL))
    ended = form.constraint(conversation(), "<think>\n\n</think>\n\n").grammar
    assert accepts(ended, tagged(CALL)) and not accepts(ended, "<think></think>" + tagged(CALL))


def test_gpt_oss_is_made_to_call_one_tool():
    form = ChatFormat("openai", "openai_gptoss")
    named = conversation(ToolChoice("named", "get_weather"))
    constraint = form.constraint(named, "")
    assert accepts(constraint.grammar, json.dumps(CALL["arguments"]))
    reader = PartReader(form.reader(named, ""), named, constraint.prefill)
    event = TokenEvent((), '{"city": "Paris"}', finish_reason="stop")
    (call,) = Reply.of(reader.push(event)).tool_calls
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')
    with pytest.raises(ApiError, match="name it in 'tool_choice'"):
        form.constraint(conversation(), "")


def test_a_format_that_cannot_be_made_to_call_says_so():
    with pytest.raises(ApiError, match="cannot be made to call"):
        ChatFormat("qwen3_coder").constraint(conversation(), "")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "yes" | "no"',
        LLMatcher.grammar_from_json_schema('{"enum": ["a"]}'),
    ],
)
def test_a_model_may_think_before_it_answers_in_a_grammar(grammar):
    answer = "yes" if grammar.startswith("start") else '"a"'
    whole = after_thoughts(grammar, TAGS["qwen3"], "")
    assert accepts(whole, answer) and accepts(whole, f"<think>\nHm\n</think>\n\n{answer}")
    assert not accepts(whole, "hm") and not accepts(whole, "<think>hm")
    begun = after_thoughts(grammar, TAGS["qwen3"], "<think>\n")
    assert accepts(begun, f"Hm\n</think>\n\n{answer}") and not accepts(begun, answer)
    assert after_thoughts(grammar, TAGS["qwen3"], "<think>\n\n</think>\n\n") == grammar
    assert after_thoughts(grammar, None, "") == grammar


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(card=card(), answers=[tagged(CALL)])


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
)
async def test_the_ring_is_sent_the_grammar_of_a_forced_call(serve, service, choice, reason):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=ASK, tools=[TOOL], tool_choice=choice
        )
    (choice,) = answer.choices
    assert (choice.message.tool_calls[0].function.name, choice.finish_reason) == (
        "get_weather",
        reason,
    )
    grammar = service.requests[0].sampling.grammar
    assert accepts(grammar, tagged(CALL)) and not accepts(grammar, "No.")


async def test_a_grammar_of_the_request_lets_the_model_think(serve, service):
    service.answers = ["<think>Hm.</think>{}"]
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=ASK, response_format={"type": "json_object"}
        )
    assert (answer.choices[0].message.reasoning, answer.choices[0].message.content) == ("Hm.", "{}")
    grammar = service.requests[0].sampling.grammar
    assert accepts(grammar, "{}") and accepts(grammar, "<think>Hm.</think>{}")


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FUNCTION = TOOL["function"]
ANTHROPIC = {"name": "get_weather", "input_schema": FUNCTION["parameters"]}
BODIES = {
    CHAT: {"messages": ASK, "tools": [TOOL], "tool_choice": "required"},
    RESPONSES: {
        "input": "weather?",
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
    },
    MESSAGES: {
        "messages": ASK,
        "max_tokens": 500,
        "tools": [ANTHROPIC],
        "tool_choice": {"type": "any"},
    },
}


@pytest.mark.parametrize("path", BODIES)
async def test_every_dialect_can_demand_a_call(serve, service, http, path):
    url = await serve(service)
    async with http.post(url + path, json=BODIES[path]) as answer:
        assert answer.status == 200, await answer.text()
        assert "get_weather" in await answer.text()
    grammar = service.requests[0].sampling.grammar
    assert accepts(grammar, tagged(CALL)) and not accepts(grammar, "No.")


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        (CHAT, {"tools": []}),
        (RESPONSES, {"tools": []}),
        (MESSAGES, {"tools": []}),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "nobody"}}),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "nobody"}}),
    ],
)
async def test_a_call_of_nothing_cannot_be_demanded(serve, service, http, path, changes):
    url = await serve(service)
    async with http.post(url + path, json=BODIES[path] | changes) as answer:
        assert answer.status == 400 and "tool_choice" in await answer.text()
    assert not service.requests
