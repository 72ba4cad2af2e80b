"""Bodies with as many messages as may be, which one caller sends and all others wait for.

A turn that is joined piece by piece copies all pieces before each, so its work grows with the
square of their number. How often a turn is made anew tells it, on any machine.
"""

import pytest

from molink.api.anthropic import conversation as anthropic
from molink.api.anthropic.schemas import MessagesBody
from molink.api.chat.conversation import one_turn
from molink.api.openai.responses import conversation as responses
from molink.api.openai.responses.schemas import ResponsesBody
from molink.api.schemas import MESSAGES_MAX

SAID = [{"role": "user", "content": "x" * 60}] * MESSAGES_MAX
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
LAST = {"role": "user", "content": "and?"}


@pytest.fixture
def joined_turns(monkeypatch):
    """Roles of the turns that were put together, in order."""
    roles = []

    def noted(messages, between=""):
        roles.append(messages[0].role)
        return one_turn(messages, between)

    monkeypatch.setattr(anthropic, "one_turn", noted)
    monkeypatch.setattr(responses, "one_turn", noted)
    return roles


@pytest.mark.parametrize(
    ("messages", "chars", "calls", "turns"),
    [
        (SAID, 61 * MESSAGES_MAX - 1, 0, ["user"]),
        (
            [{"role": "assistant", "content": [USE]}] * (MESSAGES_MAX - 1) + [LAST],
            0,
            MESSAGES_MAX - 1,
            ["assistant", "user"],
        ),
    ],
    ids=["texts", "calls"],
)
def test_turns_of_one_speaker_are_joined_once(joined_turns, messages, chars, calls, turns):
    body = MessagesBody.model_validate({"max_tokens": 5, "messages": messages})
    first = anthropic.conversation_of(body).messages[0]
    assert (len(first.text), len(first.tool_calls), joined_turns) == (chars, calls, turns)


def test_items_of_one_turn_are_joined_once(joined_turns):
    body = ResponsesBody.model_validate({"input": [CALL] * (MESSAGES_MAX - 1) + [LAST]})
    conversation = responses.conversation_of(body)
    assert [len(one.tool_calls) for one in conversation.messages] == [MESSAGES_MAX - 1, 0]
    assert joined_turns == ["assistant", "user"]
