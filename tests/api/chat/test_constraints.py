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
from molink.api.chat.constraints import AnswerGrammars
from molink.api.chat.format import TAGS
from molink.api.chat.formats.think import ThinkTags
from molink.api.chat.lark import LarkWriter
from molink.api.chat.prompt import PartReader
from molink.config.parsers import AUTO, NONE, TOOL_PARSERS
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink.serving.token_events import TokenEvent
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


def ids(text: str) -> list[int]:
    return list(text.encode())


def accepts(grammar: str, answer: str | list[int]) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = ids(answer) if isinstance(answer, str) else answer
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def conversation(choice: ToolChoice = REQUIRED, *, parallel: bool = True) -> Conversation:
    user = (Message("user", "hi"),)
    return Conversation(user, TOOLS, choice, parallel_tool_calls=parallel)


FIRST = {"city": "Paris", "days": 3}
CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nPa\nris\n\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>a <b>\n</arg_value>\n</tool_call>"
)
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>\n'
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">P</parameter>\n'
    "</invoke>\n</minimax:tool_call>"
)
SEED = (
    "<seed:think>Hm.</seed:think><seed:tool_call>\n<function=get_weather>\n"
    "<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>"
)
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    + json.dumps(FIRST)
    + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_V31 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Pa <b></｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
HARMONY_CALL = (
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    + json.dumps(FIRST)
)
HARMONY_THOUGHTS = "<|channel|>analysis<|message|>Hm. What?\n<|end|><|start|>assistant"

ALLOWED = [
    ("hermes", "none", tagged(CALL)),
    ("hermes", "none", tagged(CALL, TIME)),
    ("hermes", "qwen3", tagged(TIME)),
    ("hermes", "qwen3", "<think>\nHm </tool_call>\n</think>\n\n" + tagged(CALL)),
    ("llama3_json", "none", llama(CALL)),
    ("mistral", "none", "[TOOL_CALLS]" + json.dumps([CALL, TIME])),
    ("mistral", "mistral", "[THINK]Hm.[/THINK][TOOL_CALLS]" + json.dumps([CALL])),
    ("granite", "none", "<|tool_call|>" + json.dumps([CALL])),
    ("phi4_mini_json", "none", "functools" + json.dumps([CALL, TIME])),
    ("jamba", "none", "<tool_calls>" + json.dumps([CALL]) + "</tool_calls>"),
    ("nemotron_json", "none", "<TOOLCALL>" + json.dumps([CALL]) + "</TOOLCALL>"),
    ("qwen3_coder", "none", CODER),
    ("qwen3_coder", "qwen3", "<think>Hm.\n</think>\n\n" + CODER + "\n" + CODER),
    ("glm45", "qwen3", GLM),
    ("minimax_m2", "none", MINIMAX),
    ("seed_oss", "seed_oss", SEED),
    ("deepseek_v3", "none", DEEPSEEK),
    ("deepseek_v31", "qwen3", DEEPSEEK_V31),
    ("kimi_k2", "none", KIMI),
    ("deepseek_v32", "qwen3", DSML),
    ("deepseek_v4", "none", DSML.replace("function_calls", "tool_calls")),
    ("gemma4", "none", "<|tool_call>call:get_weather" + json.dumps(FIRST) + "<tool_call|>"),
    ("lfm2", "none", f"<|tool_call_start|>{json.dumps([CALL, TIME])}<|tool_call_end|>"),
    ("openai", "openai_gptoss", HARMONY_CALL),
    ("openai", "openai_gptoss", HARMONY_THOUGHTS + HARMONY_CALL),
]


@pytest.mark.parametrize(("tools", "reasoning", "text"), ALLOWED)
def test_a_forced_answer_is_read_as_calls(tools, reasoning, text):
    asked, form = conversation(), ChatFormat(tools, reasoning)
    assert accepts(form.call_grammar(asked, ""), text)
    reader = PartReader(form.reader(asked, ""), asked)
    parts = [part for char in text for part in reader.push(TokenEvent((), char))]
    reply = Reply.of(parts + reader.push(TokenEvent((), "", finish_reason="stop")))
    assert reply.finish_reason == "tool_calls" and not reply.text
    assert {call.name for call in reply.tool_calls} <= {"get_weather", "get_time"}
    assert not reply.has_broken_call


def test_every_parser_of_calls_can_be_made_to_call():
    assert {tools for tools, _, _ in ALLOWED} == set(TOOL_PARSERS) - {AUTO, NONE}


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
        ("mistral", "[TOOL_CALLS][]"),
        ("qwen3_coder", CODER.replace("get_weather", "nobody")),
        ("qwen3_coder", CODER.replace("\n3\n", "\nmany\n")),
        ("qwen3_coder", CODER.replace("<parameter=city>\nPa\nris\n\n</parameter>\n", "")),
        ("glm45", GLM.replace("</arg_value>", "</tool_call></arg_value>")),
        ("glm45", "<tool_call>get_time</tool_call>"),
        ("deepseek_v32", DSML.replace('string="false"', 'string="true"')),
        ("deepseek_v3", DEEPSEEK.replace("Paris", '"')),
        ("openai", "<|channel|>final<|message|>No."),
        ("openai", HARMONY_CALL + "<|call|>" + HARMONY_CALL),
    ],
)
def test_what_a_forced_answer_cannot_be(tools, text):
    assert not accepts(ChatFormat(tools).call_grammar(conversation(), ""), text)


def test_a_named_tool_and_a_single_call():
    form = ChatFormat("hermes")
    named = form.call_grammar(conversation(ToolChoice("named", "get_time")), "")
    assert accepts(named, tagged(TIME)) and not accepts(named, tagged(CALL))
    assert not accepts(named, tagged(TIME, TIME))
    single = form.call_grammar(conversation(parallel=False), "")
    assert accepts(single, tagged(CALL)) and not accepts(single, tagged(CALL, CALL))


def test_thoughts_go_on_where_the_template_began_them():
    form = ChatFormat("hermes", "qwen3")
    begun = form.call_grammar(conversation(), "<think>\n")
    assert accepts(begun, "Hm.</think>\n\n" + tagged(CALL)) and not accepts(begun, tagged(CALL))
    ended = form.call_grammar(conversation(), "<think>\n\n</think>\n\n")
    assert accepts(ended, tagged(CALL)) and not accepts(ended, "<think></think>" + tagged(CALL))


def test_marks_that_are_special_tokens_are_named_by_their_ids():
    marks = {"<|channel|>": 257, "<|message|>": 258, "<|end|>": 259, "<|start|>": 260}
    form = ChatFormat("openai", "openai_gptoss", special_marks=marks)
    thoughts = [257, *ids("analysis"), 258, *ids("Hm.\n<b>"), 259, 260, *ids("assistant")]
    head = [257, *ids("commentary to=functions.get_time <|constrain|>json"), 258]
    grammar = form.call_grammar(conversation(), "")
    assert accepts(grammar, thoughts + head + ids("{}")) and accepts(grammar, head + ids("{}"))
    assert not accepts(grammar, ids("<|channel|>commentary to=functions.get_time"))
    assert answer_to(GrammarQuestion("lark", grammar)).grammar


def test_a_grammar_with_ids_of_a_large_vocabulary_is_checked():
    form = ChatFormat("mistral", special_marks={"[TOOL_CALLS]": 131_000, "[ARGS]": 32})
    grammar = form.call_grammar(conversation(), "")
    assert '<[131000]> "get_time" <[32]>' in grammar
    assert answer_to(GrammarQuestion("lark", grammar)).grammar == grammar
    assert answer_to(GrammarQuestion("grammar", grammar)).error, "a user's cannot name tokens"


@pytest.mark.parametrize("marks", [{}, {"<|message|>": 258, "<|channel|>": 257}])
def test_gpt_oss_thinks_before_an_answer_in_a_grammar(marks):
    form = ChatFormat("openai", "openai_gptoss", special_marks=marks)
    grammar = form.text_grammar(
        answer_to(GrammarQuestion("json", '{"type": "object"}')).grammar, conversation(), ""
    )
    final = [257, *ids("final"), 258] if marks else ids("<|channel|>final<|message|>")
    begin = [257, *ids("analysis"), 258] if marks else ids("<|channel|>analysis<|message|>")
    thoughts = begin + ids("So.<|end|><|start|>assistant")
    assert accepts(grammar, final + ids("{}")) and accepts(grammar, thoughts + final + ids("{}"))
    assert not accepts(grammar, ids("{}")) and not accepts(grammar, thoughts + ids("{}"))


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "yes" | "no"',
        LLMatcher.grammar_from_json_schema('{"enum": ["a"]}'),
    ],
)
def test_a_model_may_think_before_it_answers_in_a_grammar(grammar):
    answer = "yes" if grammar.startswith("start") else '"a"'

    def whole(tags: ThinkTags | None, prompt: str) -> str:
        return AnswerGrammars(tags, prompt, LarkWriter()).after_thoughts(grammar)

    free = whole(TAGS["qwen3"], "")
    assert accepts(free, answer) and accepts(free, f"<think>\nHm\n</think>\n\n{answer}")
    assert not accepts(free, "hm") and not accepts(free, "<think>hm")
    begun = whole(TAGS["qwen3"], "<think>\n")
    assert accepts(begun, f"Hm\n</think>\n\n{answer}") and not accepts(begun, answer)
    assert whole(TAGS["qwen3"], "<think>\n\n</think>\n\n") == grammar
    assert whole(None, "") == grammar


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
