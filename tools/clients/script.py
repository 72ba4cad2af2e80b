"""What the scripted model answers, from the conversation alone.

Nothing is remembered between requests: the next step is as many as there are calls in the history.
So a request that is sent again gets the same answer, and a client that loses a piece of its history
is found out by the folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.clients.session import HALF, STEPS
from tools.clients.tool_calls import KNOWN, Call, call_of_step, filled, has_shell

__all__ = ["DONE", "EDITED", "HALF_DONE", "HELLO", "Conversation", "answer_to"]

HELLO = "Oldford has 21 degrees."
HALF_DONE, DONE = "Half of the garden is done.", "All of the garden is done."

EDITED = "oldford.txt"
"""File that is written where an agent without tools wants blocks of edits in the answer."""

BLOCK = f"{EDITED}\n```\n<<<<<<< SEARCH\n=======\n{HELLO}\n>>>>>>> REPLACE\n```\n"

THOUGHTFUL_EACH = 4
"""Of so many steps one begins with thoughts, and one with text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Prompt of a request, as the template wrote it."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of_prompt(cls, text: str) -> "Conversation":
        """From a prompt; one that no template wrote is a user's text."""
        try:
            found = json.loads(text)
            return cls(found["messages"], found["tools"] or ())
        except (ValueError, KeyError, TypeError):
            return cls([{"role": "user", "content": text}])

    @property
    def calls(self) -> int:
        """How many answers called tools."""
        return sum(1 for one in self.messages if one.get("tool_calls"))

    @property
    def called(self) -> frozenset[str]:
        """Names of the tools that were called."""
        calls = (call for one in self.messages for call in one.get("tool_calls") or ())
        return frozenset(call["function"]["name"] for call in calls)

    @property
    def wants_json(self) -> bool:
        """Whether its words ask for JSON, as some clients do instead of by a field."""
        return any("JSON" in str(one.get("content")) for one in self.messages)

    def contains_answer(self, text: str) -> bool:
        """Whether an earlier answer contains a text."""
        said = (one for one in self.messages if one["role"] == "assistant")
        return any(text in json.dumps(one.get("content"), ensure_ascii=False) for one in said)


def answer_to(asked: Conversation, grammar: str, root: Path, half: int | None = HALF) -> str:
    """The model's text; `grammar`: what it must match, empty for anything; `half`: after how many
    steps it waits for the second prompt, None: for none."""
    if has_shell(asked.tools):
        return _step(asked, root, half)
    left = [one["function"] for one in asked.tools if one["function"]["name"] not in asked.called]
    named = [tool for tool in left if json.dumps(tool["name"])[1:-1] in grammar] if grammar else []
    if left and (named or not grammar):
        return _written(_any_call((named or left)[0]))
    if "SEARCH/REPLACE" in str(asked.messages[0].get("content")):
        return f"{HELLO}\n\n{BLOCK}"
    return json.dumps(KNOWN) if grammar or asked.wants_json else HELLO


def _step(asked: Conversation, root: Path, half: int | None) -> str:
    number = asked.calls
    if number == half and not asked.contains_answer(HALF_DONE):
        return HALF_DONE
    if number >= len(STEPS):
        return DONE
    call = _written(call_of_step(STEPS[number], asked.tools, root))
    if number % THOUGHTFUL_EACH == 0:
        return f"<think>\nStep {number} is next.\n</think>\n\n{call}"
    if number % THOUGHTFUL_EACH == 1:
        return f"I do step {number} now.\n{call}"
    return call


def _any_call(tool: Mapping[str, Any]) -> Call:
    schema = tool.get("parameters") or {}
    arguments = {name: filled(name, one) for name, one in (schema.get("properties") or {}).items()}
    return Call(tool["name"], arguments)


def _written(call: Call) -> str:
    """As Hermes and Qwen write calls."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
