"""Prompts of conversations, and what a chat template tells of its model's format."""

import pytest
from jinja2 import Environment
from transformers import AddedToken, AutoTokenizer

from molink.api.chat import ChatFormat, Conversation, Message, Tool, ToolCall
from molink.api.requests import TEXT_CHARS_ON_LOOP_MAX
from molink.config.parsers import AUTO, NONE, REASONING_PARSERS, TOOL_PARSERS
from molink.models import DEMO_MODEL_DIR
from tests.api.conftest import CharTokenizer

CALL = ToolCall("call_1", "get_weather", '{"city": "Paris"}')
TALK = (
    Message("user", "weather?"),
    Message("assistant", "I look.", reasoning="Hm.", tool_calls=(CALL,)),
    Message("tool", "rain", tool_call_id="call_1"),
)

TEMPLATES = {
    "Qwen2.5": (
        "{% if tools %}<tools>{{ tools }}</tools>{% endif %}<tool_call>\n{{ call }}\n</tool_call>",
        ("hermes", "none"),
    ),
    "Qwen3": (
        "{{ tools }}<tool_call>{% if '</think>' in m.content %}{% endif %}",
        ("hermes", "qwen3"),
    ),
    "Qwen3-Coder": (
        "{{ tools }}<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>",
        ("qwen3_coder", "none"),
    ),
    "another one": ("{{ tools }}<function={{ name }}>{{ arguments }}", ("none", "none")),
    "Llama 3.1": ("{{ tools }}<|python_tag|>{{ '{\"name\": ' }}", ("llama3_json", "none")),
    "Llama 3.2": (
        '{{ tools }}Respond in the format {"name": function name, "parameters": dictionary}',
        ("llama3_json", "none"),
    ),
    "Mistral": ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", ("mistral", "none")),
    "Magistral": ("{{ tools }}[TOOL_CALLS][THINK]{{ m }}[/THINK]", ("mistral", "mistral")),
    "gpt-oss": (
        "<|start|>assistant<|channel|>analysis<|message|>{{ tools }}",
        ("openai", "openai_gptoss"),
    ),
    "DeepSeek-R1": ("{{ m.content.split('</think>')[-1] }}", ("none", "qwen3")),
    "plain": ("{{ messages }}", ("none", "none")),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_the_format(name):
    template, parsers = TEMPLATES[name]
    found = ChatFormat.of(CharTokenizer(template))
    assert (found.tool_parser, found.reasoning_parser) == parsers
    assert found.takes_tools == ("tools" in template)


def test_the_operator_has_the_last_word():
    template, _ = TEMPLATES["Qwen3"]
    found = ChatFormat.of(CharTokenizer(template), "llama3_json", "none")
    assert (found.tool_parser, found.reasoning_parser) == ("llama3_json", "none")


@pytest.mark.parametrize("tools", sorted(set(TOOL_PARSERS) - {AUTO}))
@pytest.mark.parametrize("reasoning", sorted(set(REASONING_PARSERS) - {AUTO}))
def test_every_parser_that_can_be_named_is_there(tools, reasoning):
    conversation = Conversation(TALK[:1], (Tool("get_weather"),))
    reader = ChatFormat(tools, reasoning).reader(conversation, "")
    is_plain = type(reader).__name__ == "PlainText"
    assert is_plain == (tools == reasoning == NONE)


def test_no_tokenizer_tells_nothing():
    assert ChatFormat.of(None) == ChatFormat()


@pytest.mark.parametrize("special", [True, False])
def test_marks_that_are_special_tokens_are_asked_for(special):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    marks = [AddedToken(mark, special=special) for mark in ("<tool_call>", "</tool_call>")]
    tokenizer.add_tokens(marks, special_tokens=special)
    tokenizer.chat_template = TEMPLATES["Qwen2.5"][0]
    assert ChatFormat.of(tokenizer).hides_marks == special


def test_marks_are_those_of_the_template_that_is_used():
    named = {
        "rag": "<|tool_call|> {{ tools }}",
        "default": "D",
        "tool_use": "{{ tools }}<tool_call>",
    }
    found = ChatFormat.of(CharTokenizer(named))
    assert (found.tool_parser, found.takes_tools) == ("hermes", True)
    del named["tool_use"]
    assert not ChatFormat.of(CharTokenizer(named)).takes_tools


def test_what_a_template_reads():
    user, said, result = Conversation(TALK).templated_messages()
    assert user == {"role": "user", "content": "weather?"}
    assert said["reasoning_content"] == said["reasoning"] == "Hm."
    assert said["tool_calls"] == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
        }
    ]
    assert result == {
        "role": "tool",
        "content": "rain",
        "tool_call_id": "call_1",
        "name": "get_weather",
    }


def test_gpt_oss_reads_thinking_and_no_text_beside_a_call():
    _, said, _ = Conversation(TALK).templated_messages(reads_thinking=True)
    assert (said["thinking"], said["content"]) == ("Hm.", "")


@pytest.mark.parametrize("arguments", ["", "{}"])
def test_a_call_without_arguments_has_empty_ones(arguments):
    said = Message("assistant", tool_calls=(ToolCall("1", "now", arguments),))
    (found,) = Conversation((said,)).templated_messages()
    assert found["tool_calls"][0]["function"]["arguments"] == {}


def test_templates_can_look_into_a_tool_without_parameters():
    (tool,) = Conversation((), (Tool("now"),)).templated_tools() or []
    text = "{{ tool.function.parameters.properties | length }}{{ tool.function.description }}"
    assert Environment(autoescape=True).from_string(text).render(tool=tool) == "0"


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation((Message("user"),) * 400),
        Conversation((Message("assistant", tool_calls=(CALL,) * 400),)),
        Conversation((Message("user"),), tools=(Tool("f", "x" * 9000),)),
    ],
    ids=["messages", "calls", "descriptions"],
)
def test_many_short_messages_are_long_work_too(conversation):
    assert conversation.chars > TEXT_CHARS_ON_LOOP_MAX
