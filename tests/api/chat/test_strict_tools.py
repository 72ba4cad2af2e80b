"""Strict tools that nothing forces to be called: free text, and calls that match their schemas."""

import json
from dataclasses import replace

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer

from molink.api.chat import ChatFormat, Conversation, Message, Reply, Tool, ToolChoice
from molink.api.chat.format import CALL_READERS
from molink.api.chat.formats.shapes import NAME
from molink.api.chat.prompt import PartReader
from molink.models import DEMO_MODEL_DIR
from molink.serving.token_events import TokenEvent
from tests.api.scripted import CALL, SCHEMA, ScriptedService

BYTES = LLTokenizer("byte")
WEATHER = Tool("weather", parameters=SCHEMA, strict=True)
TOOLS = (WEATHER, Tool("time"))
ANYTHING_GOES = {"name": "time", "arguments": {"zone": ["any"]}}


def asked(tools=TOOLS, **fields) -> Conversation:
    return Conversation((Message("user", "hi"),), tools, **fields)


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def tagged(call: dict) -> str:
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("It rains.", []),
        ('A <tool> and {"a": 1}', []),
        (CALL, ["weather"]),
        (f"I will look.\n{CALL}", ["weather"]),
        (f"{CALL}\n{tagged(ANYTHING_GOES)}", ["weather", "time"]),
        (f"<think>\nHm.\n</think>\n\nI will look.\n{CALL}", ["weather"]),
    ],
)
def test_text_and_good_calls_are_as_they_were(text, calls):
    form = ChatFormat("hermes", "qwen3")
    assert accepts(form.call_grammar(asked(), ""), text)
    reader = PartReader(form.reader(asked(), ""), asked())
    parts = [part for char in text for part in reader.push(TokenEvent((), char))]
    reply = Reply.of(parts + reader.push(TokenEvent((), "", finish_reason="stop")))
    assert [call.name for call in reply.tool_calls] == calls


@pytest.mark.parametrize(
    "call",
    [
        {"name": "weather", "arguments": {}},
        {"name": "weather", "arguments": {"city": 5}},
        {"name": "weather", "arguments": {"city": "Oslo", "day": 1}},
        {"name": "nobody", "arguments": {}},
    ],
)
def test_a_call_that_does_not_match_cannot_be_written(call):
    grammar = ChatFormat("hermes").call_grammar(asked(), "")
    assert not accepts(grammar, f"I will look.\n{tagged(call)}")
    assert accepts(grammar, json.dumps(call)), "without its mark it is text"


def test_a_call_that_has_begun_must_end():
    grammar = ChatFormat("hermes").call_grammar(asked(), "")
    assert not accepts(grammar, CALL.removesuffix("</tool_call>"))


@pytest.mark.parametrize("parser", ["deepseek_v3", "granite", "jamba", "mistral", "nemotron_json"])
def test_other_formats_with_a_mark_and_json(parser):
    form, shape = ChatFormat(parser), CALL_READERS[parser].shape
    whole = shape.begin + shape.open.replace(NAME, "weather")
    grammar = form.call_grammar(asked(), "")
    assert accepts(grammar, "It rains.")
    forced = form.call_grammar(asked(tool_choice=ToolChoice("named", "weather")), "")
    for arguments, is_good in (({"city": "Oslo"}, True), ({"city": 5}, False)):
        call = f"{whole}{json.dumps(arguments)}{shape.close}{shape.end}"
        assert accepts(forced, call) is is_good, "as where it is demanded"
        assert accepts(grammar, f"I will look.\n{call}") is is_good


def test_a_mark_that_is_a_special_token_is_no_text():
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    (mark,) = tokenizer.encode("<|system|>", add_special_tokens=False)
    grammar = ChatFormat("hermes", special_marks={"<tool_call>": mark}).call_grammar(asked(), "")

    def is_taken(arguments: dict) -> bool:
        call = json.dumps({"name": "weather", "arguments": arguments})
        before, behind = (
            tokenizer.encode(text, add_special_tokens=False)
            for text in ("I will look.", f"\n{call}\n</tool_call>")
        )
        matcher = LLMatcher(from_tokenizer(tokenizer), grammar, log_level=0)
        tokens = [*before, mark, *behind]
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert is_taken({"city": "Oslo"})
    assert not is_taken({"city": 5})


@pytest.mark.parametrize(
    ("parser", "conversation"),
    [
        ("hermes", asked((replace(WEATHER, strict=False),))),
        ("hermes", asked(tool_choice=ToolChoice("none"))),
        ("llama3_json", asked()),
        ("kimi_k2", asked()),
        ("openai", asked()),
        ("qwen3_coder", asked()),
    ],
)
def test_where_nothing_is_enforced_there_is_no_grammar(parser, conversation):
    assert ChatFormat(parser).call_grammar(conversation, "") == ""


async def test_the_grammar_travels_with_the_request(serve):
    service = ScriptedService(script=CALL)
    function = {"name": "weather", "parameters": SCHEMA, "strict": True}
    asked = {"model": "tiny/model", "messages": [{"role": "user", "content": "hi"}]}
    asked["tools"] = [{"type": "function", "function": function}]
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(**asked)
        form = {"type": "json_object"}
        await client.chat.completions.create(**asked, response_format=form)
        function["parameters"] = SCHEMA | {"properties": {"city": {"type": "strange"}}}
        with pytest.raises(openai.BadRequestError, match="'tools' cannot be followed"):
            await client.chat.completions.create(**asked)
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"
    strict, formed = (one.sampling.grammar for one in service.requests)
    assert accepts(strict, f"Hm. {CALL}") and not accepts(strict, CALL.replace('"Oslo"', "5"))
    assert accepts(formed, "{}") and accepts(formed, CALL) and not accepts(formed, f"Hm. {CALL}")
    assert not accepts(formed, CALL.replace('"Oslo"', "5"))
