"""From the body of a chat completion to a conversation."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from molink.api.chat import Conversation, Message, Tool, ToolCall, ToolChoice
from molink.api.chat.content import CALLS, ContentPart, check_read, joined, text_within
from molink.api.chat.conversation import with_ids
from molink.api.errors import ApiError
from molink.api.openai.chat_schemas import ChatBody, FunctionBody, FunctionTool
from molink.api.openai.chat_schemas import Message as MessageBody
from molink.api.openai.tool_choice import chosen

ROLES = {"developer": "system", "function": "tool"}


def conversation_of(body: ChatBody) -> Conversation:
    """The conversation in a checked body. Raises ApiError for what cannot be meant."""
    if body.continue_final_message and body.add_generation_prompt:
        raise ApiError(
            "'continue_final_message' and 'add_generation_prompt' exclude each other: leave one "
            "out.",
            param="continue_final_message",
        )
    goes_on = bool(body.continue_final_message)
    _check_last(body.messages)
    tools, choice = _offered(body)
    return Conversation(
        messages=tuple(with_ids(chain.from_iterable(map(_messages, body.messages)))),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False and not body.is_former,
        reasoning_effort=body.reasoning_effort,
        template_kwargs=body.chat_template_kwargs or {},
        include_reasoning=body.include_reasoning is not False,
        add_generation_prompt=body.add_generation_prompt is not False and not goes_on,
        continue_final_message=goes_on,
    )


# -- messages -------------------------------------------------------------------------------------


def _check_last(messages: Sequence[MessageBody]) -> None:
    """A picture behind the result of a tool is the tool's: agents send it so, for a result in this
    dialect holds text alone."""
    is_asked = messages[-1].role == "user"
    if is_asked and not (len(messages) > 1 and messages[-2].role in ("tool", "function")):
        check_read(messages[-1].content, f"messages.{len(messages) - 1}.content")


def _messages(body: MessageBody) -> Iterator[Message]:
    """Messages in one message of a body; results of tools in Anthropic's words stand first."""
    for part in body.content:
        if part.type == "tool_result":
            given = text_within(part.content)
            yield Message("tool", given, tool_call_id=_text(part, "tool_use_id"))
    message = _message(body)
    if message.text or message.tool_calls or all(one.type != "tool_result" for one in body.content):
        yield message


def _text(part: ContentPart, name: str) -> str:
    return str((part.model_extra or {}).get(name) or "")


def _message(body: MessageBody) -> Message:
    """One message; parts of its text stand on lines of their own."""
    functions = [(one.id, one.function) for one in body.tool_calls or ()]
    if body.function_call is not None:
        functions.append(("", body.function_call))
    calls = [ToolCall(id, one.name, one.arguments) for id, one in functions]
    for part in body.content:
        if part.type == "tool_use":
            given = json.dumps((part.model_extra or {}).get("input") or {}, ensure_ascii=False)
            calls.append(ToolCall(_text(part, "id"), _text(part, "name"), given))
    role: Any = ROLES.get(body.role, body.role)
    return Message(
        role=role,
        text=joined(one for one in body.content if one.type not in CALLS) or body.refusal or "",
        reasoning=body.reasoning or body.reasoning_content or "",
        tool_calls=tuple(calls),
        tool_call_id=body.tool_call_id,
        name=body.name or "",
    )


# -- tools ----------------------------------------------------------------------------------------


def _offered(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    if body.is_former:
        return chosen(tuple(map(_tool, body.functions or ())), body.function_call)
    functions = [one.function for one in body.tools or () if isinstance(one, FunctionTool)]
    return chosen(tuple(map(_tool, functions)), body.tool_choice)


def _tool(function: FunctionBody) -> Tool:
    return Tool.of(function.name, function.description, function.parameters, function.strict)
