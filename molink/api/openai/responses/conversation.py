"""From the items of a request to a conversation.

What one turn of the model gave are several items here (what it reasoned, its text, each call) and
one message in a chat template, so items of the assistant are gathered until somebody else speaks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from molink.api.chat.conversation import (
    AUTO,
    NO_PARAMETERS,
    Conversation,
    Message,
    Tool,
    ToolCall,
    ToolChoice,
)
from molink.api.errors import ApiError
from molink.api.openai.responses.schemas import (
    Content,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    Item,
    ReasoningItem,
    RefusalPart,
    ResponsesBody,
)

__all__ = ["conversation_of"]


def conversation_of(body: ResponsesBody) -> Conversation:
    """The conversation of a checked body. Raises ApiError for a choice of tools that is none."""
    tools, choice = _offered(body)
    instructions = [Message("system", body.instructions)] if body.instructions else []
    return Conversation(
        messages=(*instructions, *_messages(body.input)),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        template_kwargs=body.chat_template_kwargs or {},
        param="input",
    )


# -- messages -------------------------------------------------------------------------------------


def _messages(items: Iterable[Item]) -> list[Message]:
    turns: list[list[Message]] = []
    for item in items:
        found = _message(item)
        if turns and _is_same_turn(turns[-1][-1], found):
            turns[-1].append(found)
        else:
            turns.append([found])
    return [_one_turn(turn) for turn in turns]


def _message(item: Item) -> Message:
    match item:
        case InputMessage():
            role = "system" if item.role == "developer" else item.role
            return Message(role, _text(item.content))
        case FunctionCall():
            call = ToolCall(item.call_id, item.name, item.arguments)
            return Message("assistant", tool_calls=(call,))
        case FunctionCallOutput():
            return Message("tool", _text(item.output), tool_call_id=item.call_id)
        case ReasoningItem():
            parts = item.content or item.summary or []
            return Message("assistant", reasoning="\n".join(part.text for part in parts))
        case other:
            assert_never(other)


def _text(content: Content) -> str:
    return "\n".join(
        part.refusal if isinstance(part, RefusalPart) else part.text for part in content
    )


def _is_same_turn(last: Message, item: Message) -> bool:
    """Whether an item goes on with the turn of the assistant whose last item is `last`: reasoning
    comes before text, text before calls."""
    if not last.role == item.role == "assistant":
        return False
    if item.tool_calls:
        return True
    return not last.tool_calls and not last.text and not item.reasoning


def _one_turn(messages: Sequence[Message]) -> Message:
    return replace(
        messages[0],
        text="".join(one.text for one in messages),
        tool_calls=tuple(call for one in messages for call in one.tool_calls),
    )


# -- tools ----------------------------------------------------------------------------------------


def _offered(body: ResponsesBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools = tuple(
        Tool(
            tool.name, tool.description or "", tool.parameters or NO_PARAMETERS, tool.strict is True
        )
        for tool in body.tools or ()
    )
    match body.tool_choice:
        case None | "auto":
            return tools, AUTO
        case "none" | "required" as mode:
            return tools, ToolChoice(mode)
        case {"type": "function", "name": str(name)}:
            return tools, ToolChoice("named", name)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = [one.get("name") for one in allowed if isinstance(one, dict)]
            return _allowed(tools, names), ToolChoice(mode)
    raise ApiError(
        "'tool_choice' must be 'auto', 'none', 'required', a function or allowed tools: send "
        '{"type": "function", "name": ...} for a function.',
        param="tool_choice",
    )


def _allowed(tools: Sequence[Tool], names: Sequence[Any]) -> tuple[Tool, ...]:
    return tuple(tool for tool in tools if tool.name in names)
