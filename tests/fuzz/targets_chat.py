"""What a model can answer in a conversation: its tail may make anything of it."""

import zlib

from molink.api.chat import ChatFormat, ChatPrompt, Conversation, Message, Reply, Tool
from molink.serving.token_events import TokenEvent
from tests.api.chat.samples import SAMPLES
from tests.fuzz.target import Target

ASKED = Conversation((Message("user", "hi"),), (Tool("get_weather"),))


FORMATS = sorted({(one.tools, one.reasoning) for one in SAMPLES.values()})


def _answer(data: bytes) -> None:
    """Read in one piece and in many, which makes no difference. The input's digest picks the
    format, so that each is quick."""
    text, names = data.decode("latin-1"), FORMATS[zlib.crc32(data) % len(FORMATS)]
    prompt = ChatPrompt(ASKED, ChatFormat(*names), "", "", (1,))
    assert _plain(_in_pieces(prompt, text)) == _plain(prompt.reader().whole(text, "stop"))
    prompt.reply(text, "stop")


def _in_pieces(prompt: ChatPrompt, text: str) -> Reply:
    reader = prompt.reader()
    parts = [part for char in text for part in reader.push(TokenEvent((), char))]
    return Reply.of(parts + reader.push(TokenEvent((), "", finish_reason="stop")))


def _plain(reply: Reply) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(call.name, call.arguments) for call in reply.tool_calls]
    return reply.reasoning, reply.text, calls


TARGETS = (
    Target("chat-answer", _answer, (), tuple(one.text.encode() for one in SAMPLES.values())),
)
