"""Readers of formats: what is in an answer, however its text is cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from molink.api.chat import (
    ChatFormat,
    Conversation,
    Message,
    Reply,
    Tool,
    ToolCallDelta,
    ToolChoice,
)
from molink.api.chat.prompt import PartReader
from molink.serving.token_events import TokenEvent
from tests.api.chat.samples import SAMPLES, TIME, WEATHER, Sample

TYPES = {"city": {"type": "string"}, "days": {"type": "integer"}, "code": {"type": "string"}}
TOOLS = (Tool(WEATHER, parameters={"type": "object", "properties": TYPES}), Tool(TIME))
ASKED = Conversation((Message("user", "hi"),), TOOLS)

FORMATS = sorted({(one.tools, one.reasoning) for one in SAMPLES.values()})

PIECES = (
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|call|>",
    "analysis",
    "final",
    "commentary",
    " to=functions.get_time",
    '{"name": "get_time", "arguments": ',
    '{"name": "get_weather", "parameters": {"city": "P"}}',
    '"name"',
    '"arguments"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    ";",
    '"',
    "\\",
    "get_time",
    "<function=get_weather>",
    "</function>",
    "<parameter=days>",
    "</parameter>",
    "<arg_key>days</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<seed:think>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="get_time">',
    "</invoke>",
    '<parameter name="days">',
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "```json",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>functions.get_time:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_call|>",
    "functools",
    "<tool_calls>",
    "</tool_calls>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "word ",
    "\n",
    " ",
    "ü",
)
ANSWERS = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def read(form: tuple[str, str], pieces: list[str], conversation=ASKED, prompt="", end="stop"):
    """The parts of an answer that comes in pieces."""
    texts = ChatFormat(*form).reader(conversation, prompt)
    reader = PartReader(texts, conversation)
    parts = [part for piece in pieces for part in reader.push(TokenEvent((), piece))]
    return parts + reader.push(TokenEvent((), "", finish_reason=end))


def plain(reply: Reply):
    calls = [(call.name, call.arguments) for call in reply.tool_calls]
    return reply.reasoning, reply.text, calls, reply.finish_reason


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(at)]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_a_sample_holds(name):
    sample: Sample = SAMPLES[name]
    form = (sample.tools, sample.reasoning)
    expected = (
        sample.thinks,
        sample.says,
        list(sample.calls),
        "tool_calls" if sample.calls else "stop",
    )
    for pieces in ([sample.text], list(sample.text)):
        assert plain(Reply.of(read(form, pieces, prompt=sample.prompt))) == expected


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=8))
def test_the_cuts_of_a_sample_mean_nothing(name, places):
    sample: Sample = SAMPLES[name]
    form = (sample.tools, sample.reasoning)
    whole = Reply.of(read(form, [sample.text], prompt=sample.prompt))
    parts = Reply.of(read(form, cut(sample.text, places), prompt=sample.prompt))
    assert plain(parts) == plain(whole)


@pytest.mark.parametrize("form", FORMATS)
@settings(deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 10_000), max_size=12))
@example('<tool_call>{"name": "f", "arguments": {}}<tool_call>', [1, 20])
def test_the_cuts_of_any_answer_mean_nothing(form, text, places):
    assert plain(Reply.of(read(form, cut(text, places)))) == plain(Reply.of(read(form, [text])))
    assert plain(Reply.of(read(form, list(text)))) == plain(Reply.of(read(form, [text])))


@pytest.mark.parametrize("form", FORMATS)
@settings(deadline=None)
@given(ANSWERS)
def test_calls_come_name_first_and_in_order(form, text):
    seen: list[ToolCallDelta] = []
    for part in read(form, list(text)):
        if isinstance(part, ToolCallDelta):
            is_new = part.index == len({one.index for one in seen})
            assert is_new == bool(part.name) == bool(part.id)
            assert is_new or part.index == seen[-1].index
            assert is_new or part.arguments
            seen.append(part)
    ids = [one.id for one in seen if one.id]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("form", FORMATS)
@settings(deadline=None)
@given(st.text("ab \n.,!?é", max_size=40))
def test_plain_text_stays_as_it_is(form, text):
    implied = form[1] == "deepseek_r1"
    reply = Reply.of(read(form, list(text), prompt="</think>" if implied else ""))
    assert (reply.text, reply.reasoning, reply.tool_calls) == (text, "", [])


def test_arguments_are_handed_out_while_they_come():
    begin = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa'
    *before, last = read(("hermes", "none"), [begin, "ri", 's"}}'])[:-1]
    assert [part.arguments for part in before] == ["", '{"city": "Pa', "ri"]
    assert last.arguments == 's"}'


def test_without_tools_or_with_none_a_call_stays_text():
    text = SAMPLES["hermes"].text
    untold = Conversation(ASKED.messages)
    forbidden = Conversation(ASKED.messages, TOOLS, ToolChoice("none"))
    for conversation in (untold, forbidden):
        reply = Reply.of(read(("hermes", "none"), list(text), conversation))
        assert (reply.text, reply.tool_calls, reply.finish_reason) == (text, [], "stop")


def test_calls_after_the_first_are_dropped_where_asked_for():
    single = Conversation(ASKED.messages, TOOLS, parallel_tool_calls=False)
    reply = Reply.of(read(("hermes", "none"), [SAMPLES["hermes-two"].text], single))
    assert [call.name for call in reply.tool_calls] == [WEATHER]


def test_reasoning_is_left_out_where_asked_for():
    quiet = Conversation(ASKED.messages, TOOLS, include_reasoning=False)
    reply = Reply.of(read(("hermes", "qwen3"), [SAMPLES["qwen3-thinks"].text], quiet))
    assert (reply.reasoning, len(reply.tool_calls)) == ("", 1)


def test_an_answer_that_is_cut_off_within_a_call_says_so():
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Pa'
    reply = Reply.of(read(("hermes", "none"), [text], end="length"))
    assert reply.finish_reason == "length" and reply.has_broken_call


def test_ids_are_as_templates_demand():
    def call_id(form, name):
        return Reply.of(read(form, [SAMPLES[name].text])).tool_calls[0].id

    assert call_id(("hermes", "none"), "hermes").startswith("call_")
    mistral = call_id(("mistral", "none"), "mistral-array")
    assert len(mistral) == 9 and mistral.isalnum()


def test_sample_arguments_are_json():
    assert all(
        json.loads(arguments) is not None for s in SAMPLES.values() for _, arguments in s.calls
    )


def test_a_parameter_in_tags_is_what_its_schema_says():
    def argument(value):
        text = (
            "<tool_call><function=get_weather><parameter=days>" + value + "</parameter></function>"
        )
        (call,) = Reply.of(read(("qwen3_coder", "none"), [text])).tool_calls
        return json.loads(call.arguments)["days"]

    assert [argument(one) for one in ("3", "null", "[1]", "many")] == [3, None, [1], "many"]


@pytest.mark.parametrize("begin", ["[" * 5000, "word " * 1000, '"' + "a" * 5000])
def test_little_is_held_of_what_follows_the_arguments(begin):
    """What is held is read again with each token."""
    reader = ChatFormat("hermes").reader(ASKED, "")
    for char in '<tool_call>{"name": "get_time", "arguments": {}' + begin:
        reader.push(char)
    assert len(reader._held) < 16
