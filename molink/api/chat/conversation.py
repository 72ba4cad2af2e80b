"""A conversation as every dialect means it, and what a chat template reads of it.

OpenAI's, Anthropic's and other endpoints write the same things in different JSON: who said what,
which tools there are, which were called and what they gave. Here they are plain values; a dialect
makes them from its own body, `prompt` turns them into token ids.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NotRequired, TypedDict

from molink.json_object import JsonObject

Role = Literal["system", "user", "assistant", "tool"]

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""JSON schema of a tool that takes nothing; templates look into it."""

MARK_CHARS = 24
"""Characters of the marks around a message or a call, which take a template as long as text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of one tool, as the assistant made it."""

    id: str
    """Name by which its result is told apart from others'."""
    name: str
    arguments: str
    """The model's own JSON text: usually an object, but nobody promises that."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str = ""
    reasoning: str = ""
    """Thoughts of the assistant before it; most templates show only those of the latest turn."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that an assistant made."""
    tool_call_id: str = ""
    """Id of the call that this is the result of, for a tool."""
    name: str = ""


def one_turn(messages: Sequence[Message], between: str = "") -> Message:
    """Messages of one speaker that follow one another, put together; `between`: their texts."""
    return replace(
        messages[0],
        text=between.join(filter(None, (one.text for one in messages))),
        reasoning="\n".join(filter(None, (one.reasoning for one in messages))),
        tool_calls=tuple(call for one in messages for call in one.tool_calls),
    )


def with_ids(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages, with ids for calls that have none: results come in the order of the calls."""
    open_ids: list[str] = []
    count = 0
    for message in messages:
        call_id, calls = message.tool_call_id, []
        for call in message.tool_calls:
            count += 1
            calls.append(replace(call, id=call.id or f"call_{count}"))
        if calls:
            open_ids = [call.id for call in calls]
        if message.role == "tool" and open_ids:
            call_id = call_id or open_ids[0]
            open_ids = [one for one in open_ids if one != call_id]
        yield replace(message, tool_calls=tuple(calls), tool_call_id=call_id)


@dataclass(frozen=True, slots=True)
class Tool:
    """Function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    """JSON schema of its arguments."""
    strict: bool = False
    """Whether they must match it in a call that nothing forces, too."""

    @classmethod
    def of(cls, name: str, description: Any, parameters: Any, strict: Any) -> "Tool":
        """A tool of which all but the name may be None."""
        schema = NO_PARAMETERS if parameters is None else parameters
        return cls(name, description or "", schema, strict is True)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may, must or must not be called."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""
    """The one tool that must be called, with "named"."""

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in ("required", "named")


AUTO = ToolChoice("auto")


class TemplatedFunction(TypedDict):
    """Function that may be called, as templates read it."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of its arguments."""


class TemplatedTool(TypedDict):
    """Tool as templates read it."""

    type: Literal["function"]
    function: TemplatedFunction


class CalledFunction(TypedDict):
    """Function that was called, as templates read it."""

    name: str
    arguments: Any
    """What one of `ARGUMENT_READERS` makes of their text."""


class TemplatedCall(TypedDict):
    """Call of a tool as templates read it."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class TemplatedMessage(TypedDict):
    """Message as templates read it."""

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    thinking: NotRequired[str]
    """Reasoning under gpt-oss' name."""
    tool_calls: NotRequired[list[TemplatedCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """All facts of a request that decide its prompt and how its answer is read."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    """False: calls after the first are dropped."""
    reasoning_effort: str | None = None
    """Effort for the chat template; "none" also asks it for an answer without reasoning."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template, over all others."""
    include_reasoning: bool = True
    """Whether reasoning is part of the answer."""
    add_generation_prompt: bool = True
    """Whether the prompt ends with the beginning of the assistant's turn."""
    continue_final_message: bool = False
    """Whether it ends within the last message instead, with which the answer goes on."""
    param: str = "messages"
    """The dialect's name for the messages, for errors."""

    @property
    def chars(self) -> int:
        """Roughly as many characters as the template writes."""
        texts = sum(MARK_CHARS + len(one.text) + len(one.reasoning) for one in self.messages)
        calls = sum(
            MARK_CHARS + len(call.arguments) for one in self.messages for call in one.tool_calls
        )
        tools = sum(len(tool.description) + len(str(tool.parameters)) for tool in self.tools)
        return texts + calls + tools

    @property
    def variables(self) -> JsonObject:
        """Variables that the template knows beside messages and tools."""
        found: JsonObject = {}
        if self.reasoning_effort not in (None, "default"):
            found["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            found |= {"enable_thinking": False, "thinking": False}
        return found | dict(self.template_kwargs)

    def templated_tools(self) -> list[TemplatedTool] | None:
        """The tools as templates read them; None where there are none."""
        return [_templated_tool(tool) for tool in self.tools] or None

    def templated_messages(
        self, *, reads_thinking: bool = False, read: Callable[[str], Any] | None = None
    ) -> list[TemplatedMessage]:
        """The messages as templates read them: calls carry their arguments as objects, results
        the name of their tool. `reads_thinking`: whether reasoning is called so, as by gpt-oss;
        `read`: one of `ARGUMENT_READERS`, the first by default."""
        names = {call.id: call.name for one in self.messages for call in one.tool_calls}
        read = read or _object_or_text
        found = [_templated_message(message, names, read) for message in self.messages]
        return [_with_thinking(one) for one in found] if reads_thinking else found


def _templated_tool(tool: Tool) -> TemplatedTool:
    described: TemplatedFunction = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": described}


def _templated_message(
    message: Message, names: Mapping[str, str], read: Callable[[str], Any]
) -> TemplatedMessage:
    found: TemplatedMessage = {"role": message.role, "content": message.text}
    if message.reasoning:
        found["reasoning_content"] = found["reasoning"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [_templated_call(call, read) for call in message.tool_calls]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if name := message.name or names.get(message.tool_call_id, ""):
        found["name"] = name
    return found


def _with_thinking(message: TemplatedMessage) -> TemplatedMessage:
    """A message with reasoning under gpt-oss' name, whose template takes no text beside a call."""
    thinking = message.get("reasoning_content")
    if thinking is None:
        return message
    text = "" if "tool_calls" in message else message["content"]
    return message | {"content": text, "thinking": thinking}


def _templated_call(call: ToolCall, read: Callable[[str], Any]) -> TemplatedCall:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": read(call.arguments or "{}")},
    }


def read_json(text: str, *, strict: bool = True) -> Any:
    """Value of a text in JSON, None where it is none; `strict`: without line ends in strings."""
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return None


def _object_or_text(arguments: str) -> JsonObject | str:
    """Arguments as an object; broken ones, which a model may have written, as their text."""
    found = read_json(arguments)
    return found if isinstance(found, dict) else arguments


def _object(arguments: str) -> JsonObject:
    """Arguments as an object in any case: arguments that are none stand within one."""
    found = _object_or_text(arguments)
    return found if isinstance(found, dict) else {"arguments": found}


ARGUMENT_READERS: tuple[Callable[[str], Any], ...] = (_object_or_text, _object, str)
"""Ways in which templates want the arguments of calls: most take any value, some walk through an
object, others add text to text, as DeepSeek V3.1's."""
