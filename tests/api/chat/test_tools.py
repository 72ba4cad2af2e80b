"""Tools and reasoning through the official client, unchanged, against a server whose model answers
from a script."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import openai
import pytest

from molink.api.grammars.checker import GrammarChecker
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from tests.api.chat.samples import NESTED, PARIS, SAMPLES
from tests.api.conftest import CARD, CharTokenizer, FakeService

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% if reasoning_effort %}<effort>{{ reasoning_effort }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.tool_call_id %}({{ m.name }} {{ m.tool_call_id }}){% endif %}"
    "{% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
MODEL = "tiny/model"
ASK = [{"role": "user", "content": "weather?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass
class ScriptedService(FakeService):
    """Answers with the given texts in turn, a few characters an event."""

    answers: list[str] = field(default_factory=list)
    piece_chars: int = 3
    finish_reason: str = "stop"

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        text = self.answers[len(self.requests) % len(self.answers)]
        self.requests.append(request)
        for at in range(0, len(text), self.piece_chars):
            yield TokenEvent((97,), text[at : at + self.piece_chars])
        yield TokenEvent((3,), "", finish_reason=self.finish_reason)


def card(template: str = TEMPLATE):
    return replace(CARD, tokenizer=CharTokenizer(template), model_len_max=2000)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(card=card())


def prompt(service: ScriptedService, number: int = -1) -> str:
    return "".join(chr(one) for one in service.requests[number].prompt_token_ids)


async def ask(client, **options: Any):
    options = {"messages": ASK, "tools": [TOOL], **options}
    return await client.chat.completions.create(model=MODEL, **options)


async def streamed(client, **options: Any):
    return [chunk async for chunk in await ask(client, stream=True, **options)]


async def test_a_call_and_its_result_sent_back(client, service):
    service.answers = [SAMPLES["qwen3-thinks"].text, "It rains."]
    answer = await ask(client)
    (choice,) = answer.choices
    message = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", None)
    assert message.reasoning == message.reasoning_content == SAMPLES["qwen3-thinks"].thinks
    (call,) = message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == (
        "function",
        "get_weather",
        PARIS,
    )
    assert '"description": "The weather.", "name": "get_weather"' in prompt(service)

    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    answer = await ask(client, messages=[*ASK, message.model_dump(), result])
    assert answer.choices[0].message.content == "It rains."
    assert answer.choices[0].finish_reason == "stop"
    assert (
        f"<user>weather?<assistant><think>{message.reasoning}</think>"
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>'
        f"<tool>rain(get_weather {call.id})<assistant>"
    ) in prompt(service)


async def test_a_streamed_call(client, service):
    service.answers = [SAMPLES["hermes-text-before"].text]
    chunks = [chunk.choices[0] for chunk in await streamed(client)]
    assert chunks[0].delta.role == "assistant"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "I shall look."
    deltas = [one for chunk in chunks for one in chunk.delta.tool_calls or ()]
    first, *others = deltas
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert first.id and not any(one.id or one.function.name for one in others)
    assert len(others) > 5
    assert "".join(one.function.arguments for one in deltas) == NESTED
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


async def test_the_client_puts_a_stream_together(client, service):
    service.answers = [SAMPLES["hermes-two"].text]
    async with client.chat.completions.stream(model=MODEL, messages=ASK, tools=[TOOL]) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert [(one.function.name, one.function.arguments) for one in calls] == [
        ("get_weather", PARIS),
        ("get_time", "{}"),
    ]
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_streamed_reasoning(client, service):
    service.answers = ["<think>\nHm.\n</think>\n\nYes."]
    deltas = [chunk.choices[0].delta.model_dump() for chunk in await streamed(client)]
    assert "".join(one.get("reasoning") or "" for one in deltas) == "Hm."
    assert "".join(one.get("reasoning_content") or "" for one in deltas) == "Hm."
    assert "".join(one.get("content") or "" for one in deltas) == "Yes."


async def test_a_broken_call_is_text(client, service):
    broken = '<tool_call>{"name": "get_weather", "arguments": {city: Paris}}</tool_call>'
    service.answers = [broken]
    choice = (await ask(client)).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == (broken, None)
    assert choice.finish_reason == "stop"


async def test_arguments_that_were_broken_can_be_sent_back(client, service):
    service.answers = ["Sorry."]
    call = {"name": "get_weather", "arguments": "{city: "}
    said = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": call}],
    }
    await ask(client, messages=[*ASK, said, {"role": "tool", "tool_call_id": "1", "content": "?"}])
    assert '"arguments": "{city: "' in prompt(service)


async def test_a_call_that_is_cut_off(client, service):
    service.answers, service.finish_reason = [SAMPLES["hermes"].text[:60]], "length"
    (*_, last) = await streamed(client)
    assert last.choices[0].finish_reason == "length"


async def test_tool_choice_none(client, service):
    service.answers = [SAMPLES["hermes"].text]
    choice = (await ask(client, tool_choice="none")).choices[0]
    assert choice.message.content == SAMPLES["hermes"].text
    assert "<tools>" in prompt(service), "the model may know of them all the same"


async def test_one_call_at_a_time(client, service):
    service.answers = [SAMPLES["hermes-two"].text]
    choice = (await ask(client, parallel_tool_calls=False)).choices[0]
    assert [one.function.name for one in choice.message.tool_calls] == ["get_weather"]


async def test_a_demanded_call_goes_before_a_form(client, service):
    service.answers = [SAMPLES["hermes"].text]
    form = {"type": "json_object"}
    choice = (await ask(client, tool_choice="required", response_format=form)).choices[0]
    assert choice.message.tool_calls[0].function.name == "get_weather"
    assert "@answer" not in service.requests[-1].sampling.grammar


async def test_whole_calls_of_an_answer_that_is_cut_off(client, service):
    service.answers, service.finish_reason = [SAMPLES["hermes-two"].text[:-15]], "length"
    choice = (await ask(client)).choices[0]
    assert [one.function.name for one in choice.message.tool_calls] == ["get_weather"]
    assert (choice.finish_reason, choice.message.content) == ("length", None)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "string"}}, "contains"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"type": "string", "pattern": "^(?!a).*$"}, "pattern"),
        ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
    ],
)
async def test_what_no_grammar_follows_names_tool_and_keyword(client, service, schema, keyword):
    service.answers = [SAMPLES["hermes"].text]
    function = {
        "name": "mcp__srv__odd",
        "parameters": {"type": "object", "properties": {"k": schema}},
    }
    tools = [TOOL, {"type": "function", "function": function}]
    await ask(client, tools=tools)
    assert service.requests[-1].sampling.grammar == ""
    with pytest.raises(openai.BadRequestError, match=f"mcp__srv__odd.*{keyword}") as caught:
        await ask(client, tools=tools, tool_choice="required")
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "string", "pattern": "\\d{4}-\\d{2}"},
        {"type": "string", "format": "int64"},
        {"type": ["string", "null"], "default": None},
        {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "maxItems": 2},
        {"type": "string", "maxLength": 100_000},
        {"$ref": "#/properties/k2"},
    ],
)
async def test_odd_schemas_that_can_be_followed(client, service, schema):
    service.answers = [SAMPLES["hermes"].text]
    properties = {"k": schema, "k2": {"type": "integer"}}
    function = {"name": "odd", "parameters": {"type": "object", "properties": properties}}
    asked = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    assert (await ask(client, **asked)).choices[0].message.tool_calls
    assert service.requests[-1].sampling.grammar


def mcp_tool(number: int, **odd: Any) -> dict[str, Any]:
    """As servers of MCP describe their tools: in paragraphs."""
    said = "What the tool does, when to use it, and what comes back. " * 10
    names = ("path", "query", "limit", "cursor", "repository")
    properties = {name: {"type": "string", "description": said, "title": name} for name in names}
    schema = {"type": "object", "properties": properties, "required": ["path"], **odd}
    return {"type": "function", "function": {"name": f"mcp__tool_{number}", "parameters": schema}}


async def test_eighty_tools_with_long_descriptions_can_be_demanded(client, service):
    service.card = replace(card(), model_len_max=10**6)
    service.answers = [SAMPLES["hermes"].text]
    tools = [mcp_tool(number) for number in range(80)]
    assert (await ask(client, tools=tools, tool_choice="required")).choices
    assert "What the tool does" not in service.requests[-1].sampling.grammar


async def test_tools_that_are_too_many_are_not_looked_at_one_by_one(client, service, monkeypatch):
    service.card = replace(card(), model_len_max=10**7)
    asked = []
    whole = GrammarChecker.grammar

    async def counted(self, question, *args, **kwargs):
        asked.append(question)
        return await whole(self, question, *args, **kwargs)

    monkeypatch.setattr(GrammarChecker, "grammar", counted)
    tools = [mcp_tool(number) for number in range(300)]
    with pytest.raises(openai.BadRequestError, match="'tools' is longer than"):
        await ask(client, tools=tools, tool_choice="required")
    assert len(asked) == 1
    wrong = {"type": "object", "uniqueItems": True}
    tools = [mcp_tool(number, patternProperties={"(?=a)": wrong}) for number in (1, 2)]
    with pytest.raises(openai.BadRequestError, match="'mcp__tool_1'"):
        await ask(client, tools=tools, tool_choice="required")


async def test_stop_strings_travel_with_where_they_end_nothing(client, service):
    service.answers = ["Yes."]
    await ask(client, stop=["."])
    quiet = service.requests[-1].sampling.quiet
    assert ("<think>", "</think>", True) in quiet
    assert ("<tool_call>", "</tool_call>", False) in quiet
    await ask(client)
    assert service.requests[-1].sampling.quiet == ()


async def test_choices_have_calls_of_their_own(client, service):
    service.answers = [SAMPLES["hermes"].text, "No."]
    first, second = (await ask(client, n=2)).choices
    assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")


async def test_what_the_template_is_told(client, service):
    service.answers = ["Yes."]
    await ask(client, reasoning_effort="high")
    assert "<effort>high" in prompt(service)
    await ask(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert prompt(service).endswith("<think></think>")
    await ask(client, reasoning_effort="none")
    assert prompt(service).endswith("<think></think>")


async def test_logprobs_of_what_is_held_back_come_all_the_same(client, service):
    service.answers = ["<think>Hm.</think>Yes."]
    chunks = await streamed(client)
    assert all(chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        (
            {
                "tool_choice": "required",
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"type": "objekt"}},
                    }
                ],
            },
            "tools",
            "cannot be followed",
        ),
        ({"tool_choice": "some"}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "must be"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "nobody"}}},
            "tool_choice",
            "not among 'tools'",
        ),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tool_choice",
            "needs 'tools'",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools.0.function.name",
            "letters",
        ),
        ({"tools": [TOOL] * 1025}, "tools", "at most 1024"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "'none'"),
        ({"extra_body": {"documents": [{"text": "a"}]}}, "documents", "not supported"),
        ({"extra_body": {"chat_template": "{{ 1 }}"}}, "chat_template", "not supported"),
        (
            {"extra_body": {"chat_template_kwargs": {"messages": []}}},
            "chat_template_kwargs",
            "cannot set 'messages'",
        ),
    ],
)
async def test_what_cannot_be_honoured(client, options, param, words):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        await ask(client, **options)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "takes no tools"),
        ("{{ (tools or []) | tojson }}{{ messages[0].content }}", "--tool-parser"),
    ],
)
async def test_a_model_without_tools(serve, template, words):
    service = ScriptedService(card=card(template), answers=["Yes."])
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match=words):
            await ask(client)
        assert (await ask(client, tools=[])).choices[0].message.content == "Yes."


async def test_a_template_that_fails_on_a_users_variable(serve):
    service = ScriptedService(card=card("{{ 1 / (divisor or 1) }}"), answers=["Yes."])
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="chat template refuses"):
            extra = {"chat_template_kwargs": {"divisor": "a"}}
            await ask(client, tools=[], extra_body=extra)
