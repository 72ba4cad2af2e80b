"""From the items of a request to a conversation.

What one turn of the model gave are several items here (what it reasoned, its text, each call) and
one message in a chat template, so items of the assistant are gathered until somebody else speaks.
"""

import json
from collections.abc import Iterable
from typing import assert_never

from molink.api.chat.content import check_read, joined
from molink.api.chat.conversation import Conversation, Message, ToolCall, one_turn, with_ids
from molink.api.errors import ApiError
from molink.api.openai.responses.schemas import (
    CallItem,
    CallOutput,
    Item,
    ReasoningItem,
    ResponsesBody,
    ResponsesMessage,
)
from molink.api.openai.responses.tools import offered_tools
from molink.api.openai.tool_choice import chosen, joined_name
from molink.api.schemas import LeftOut


def conversation_of(body: ResponsesBody) -> Conversation:
    """The conversation of a checked body. Raises ApiError for a choice of tools that is none."""
    *before, last = body.input
    is_results = bool(before) and isinstance(before[-1], CallOutput)
    if isinstance(last, ResponsesMessage) and last.role == "user" and not is_results:
        check_read(last.content, f"input.{len(body.input) - 1}.content")
    tools = tuple(one.tool for one in offered_tools(body.tools or ()))
    tools, choice = chosen(tools, body.tool_choice)
    instructions = [Message("system", body.instructions)] if body.instructions else []
    return Conversation(
        messages=(*instructions, *with_ids(_messages(body.input))),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        template_kwargs=body.chat_template_kwargs or {},
        add_generation_prompt=not body.continue_final_message,
        continue_final_message=bool(body.continue_final_message),
        param="input",
    )


# -- messages -------------------------------------------------------------------------------------


def _messages(items: Iterable[Item]) -> list[Message]:
    turns: list[list[Message]] = []
    for item in items:
        found = _message(item)
        if found is None:
            continue
        if turns and _is_same_turn(turns[-1][-1], found):
            turns[-1].append(found)
        else:
            turns.append([found])
    return [one_turn(turn) for turn in turns]


def _message(item: Item) -> Message | None:
    """Message that the model is shown for an item; None: it is not shown it."""
    match item:
        case ResponsesMessage():
            role = "system" if item.role == "developer" else item.role
            return Message(role, joined(item.content), tool_call_id=item.tool_call_id)
        case CallItem():
            taken = json.dumps({"input": item.input}, ensure_ascii=False)
            arguments = taken if item.type == "custom_tool_call" else item.arguments
            call = ToolCall(item.call_id, joined_name(item.name, item.namespace), arguments)
            return Message("assistant", tool_calls=(call,))
        case CallOutput():
            return Message("tool", joined(item.output), tool_call_id=item.call_id)
        case ReasoningItem():
            parts = item.content or item.summary or []
            return Message("assistant", reasoning="\n".join(part.text for part in parts))
        case LeftOut(type="item_reference"):
            raise ApiError(
                "'input' refers to an item by its id, which is not looked up here: send the item.",
                param="input",
                code="unsupported_parameter",
            )
        case LeftOut():
            return None
        case other:
            assert_never(other)


def _is_same_turn(last: Message, item: Message) -> bool:
    """Whether an item goes on with the turn of the assistant whose last item is `last`: reasoning
    comes before text, text before calls."""
    if not last.role == item.role == "assistant":
        return False
    if item.tool_calls:
        return True
    return not last.tool_calls and not last.text and not item.reasoning
