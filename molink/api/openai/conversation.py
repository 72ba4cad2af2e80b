"""From the body of a chat completion to a conversation."""

from typing import Any

from pydantic import ValidationError

from molink.api.chat import AUTO, Conversation, Message, Tool, ToolCall, ToolChoice
from molink.api.chat.conversation import NO_PARAMETERS
from molink.api.errors import ApiError
from molink.api.openai.chat_schemas import ChatBody, NamedToolChoice, ToolBody
from molink.api.openai.chat_schemas import Message as MessageBody

__all__ = ["conversation_of", "message_of"]

MODES = {"none": ToolChoice("none"), "auto": AUTO, "required": ToolChoice("required")}


def conversation_of(body: ChatBody) -> Conversation:
    """What a checked body says. Raises ApiError for what cannot be meant."""
    if body.continue_final_message and body.add_generation_prompt:
        raise ApiError(
            "'continue_final_message' and 'add_generation_prompt' exclude each other: leave one "
            "out.",
            param="continue_final_message",
        )
    goes_on = bool(body.continue_final_message)
    return Conversation(
        messages=tuple(message_of(one) for one in body.messages),
        tools=tuple(_tool(one) for one in body.tools or ()),
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning_effort=body.reasoning_effort,
        template_kwargs=body.chat_template_kwargs or {},
        include_reasoning=body.include_reasoning is not False,
        add_generation_prompt=body.add_generation_prompt is not False and not goes_on,
        continue_final_message=goes_on,
    )


def message_of(body: MessageBody) -> Message:
    """One message; parts of its text stand on lines of their own."""
    calls = (
        ToolCall(one.id, one.function.name, one.function.arguments) for one in body.tool_calls or ()
    )
    return Message(
        role="system" if body.role == "developer" else body.role,
        text="\n".join(part.text for part in body.content),
        reasoning=body.reasoning or body.reasoning_content or "",
        tool_calls=tuple(calls),
        tool_call_id=body.tool_call_id or "",
        name=body.name or "",
    )


def _tool(body: ToolBody) -> Tool:
    function = body.function
    parameters = NO_PARAMETERS if function.parameters is None else function.parameters
    return Tool(function.name, function.description or "", parameters, function.strict is True)


def _choice(given: Any) -> ToolChoice:
    choice = _read_choice(given)
    if choice is None:
        raise ApiError(
            '\'tool_choice\' must be "none", "auto", "required" or name a function: send one '
            "of them.",
            param="tool_choice",
        )
    return choice


def _read_choice(given: Any) -> ToolChoice | None:
    if given is None or isinstance(given, str):
        return MODES.get(given or "auto")
    try:
        return ToolChoice("named", NamedToolChoice.model_validate(given).function.name)
    except ValidationError:
        return None
