"""Stop strings count in an answer's text, wherever its model's format has that."""

import pytest

from molink.api.chat import ChatFormat, Conversation, Message, Tool, ToolChoice
from molink.serving.text_stream import TextStream
from tests.api.conftest import CharTokenizer

USER = Message("user", "hi")
CALL = '{"name": "f", "parameters": {"q": "A question: END"}}'
HARMONY = "<|channel|>analysis<|message|>END<|end|><|start|>assistant"


def shown(format: ChatFormat, text: str, stop: str = "END", choice: str = "auto") -> str:
    """What is left of an answer in which a text stops it."""
    asked = Conversation((USER,), (Tool("f"),), ToolChoice(choice))
    stream = TextStream(CharTokenizer(), (stop,), quiet=format.quiet(asked, ""))
    pieces = [stream.push((ord(char),)) for char in text]
    return "".join([*pieces, stream.finish()])


@pytest.mark.parametrize(
    ("parsers", "text"),
    [
        (("phi4_mini_json", "none"), "import functools\nx = 1\n"),
        (("hermes", "none"), 'A file: {"name": "x", "version": "1"}\n'),
        (("hermes", "qwen3"), "Use the <think> tag. "),
        (("mistral", "mistral"), "Use the [THINK] tag. "),
        (("openai", "openai_gptoss"), f"{HARMONY}<|channel|>final<|message|>Yes."),
        (
            ("openai", "openai_gptoss"),
            f"{HARMONY}<|channel|>final <|constrain|>json<|message|>{{}} ",
        ),
    ],
)
def test_a_stop_string_in_the_text_ends_it(parsers, text):
    assert shown(ChatFormat(*parsers), f"{text}END and more") == text


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("phi4_mini_json", f"functools[{CALL}]"),
        ("granite", f"<|tool_call|>[{CALL}]"),
        ("llama3_json", CALL),
        ("llama3_json", f"<|python_tag|>{CALL}"),
        ("hermes", f"<tool_call>{CALL}</tool_call>"),
        ("hermes", CALL),
    ],
)
def test_a_stop_string_in_a_call_ends_nothing(parser, text):
    assert shown(ChatFormat(parser), text) == text


@pytest.mark.parametrize("stop", ["<", "|", "message", ">"])
def test_the_marks_of_channels_stop_nothing(stop):
    text = f"{HARMONY}<|channel|>final<|message|>Yes."
    assert shown(ChatFormat("openai", "openai_gptoss"), text, stop) == text


@pytest.mark.parametrize("parser", ["qwen3_coder", "llama3_json", "openai"])
def test_a_call_that_is_demanded_is_never_cut(parser):
    text = f'{{  "name": {CALL}'
    assert shown(ChatFormat(parser), text, choice="required") == text
