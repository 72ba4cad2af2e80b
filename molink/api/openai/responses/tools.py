"""Tools as a request offers them, beside what the model is shown of them.

A model knows functions with names of their own. A tool within a namespace is shown under a joined
name, one that takes a text as a function with one string; the call comes back in the words in which
the tool was offered, because clients look it up by these.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from molink.api.chat.conversation import Tool, read_json
from molink.api.openai.responses.schemas import (
    Namespace,
    ResponsesCustomTool,
    ResponsesFunctionTool,
)
from molink.api.openai.tool_choice import joined_name

TEXT_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """Tool as the client knows it."""

    tool: Tool
    """Tool under the name that the model is shown."""
    name: str
    namespace: str | None = None
    takes_text: bool = False


def offered_tools(bodies: Iterable[Any], namespace: str | None = None) -> Iterator[OfferedTool]:
    """All tools of a request that the model is shown."""
    for body in bodies:
        match body:
            case ResponsesFunctionTool(name=name):
                shown = joined_name(name, namespace)
                tool = Tool.of(shown, body.description, body.parameters, body.strict)
                yield OfferedTool(tool, name, namespace)
            case ResponsesCustomTool(name=name):
                tool = Tool(joined_name(name, namespace), _described(body), TEXT_PARAMETERS)
                yield OfferedTool(tool, name, namespace, takes_text=True)
            case Namespace():
                yield from offered_tools(body.tools or (), body.name)


def _described(body: ResponsesCustomTool) -> str:
    """Description with the grammar of the text, which the model is shown and not held to."""
    described, grammar = body.description or "", (body.format or {}).get("definition")
    return f"{described}\nThe input matches this grammar:\n{grammar}" if grammar else described


def text_of_arguments(arguments: str) -> str:
    """The text of a call that should have one: what a model wrote otherwise is given as it is."""
    found = read_json(arguments)
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
