"""From Anthropic's messages to a conversation.

A message of the user holds results of tools beside text here; a chat template reads each result as
a message of its own. Turns of the same speaker that follow one another are one turn.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from molink.api.anthropic.schemas import (
    CLIENT_TOOLS,
    AnthropicToolChoice,
    CountTokensBody,
    CustomTool,
    InputMessage,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    kind_of,
)
from molink.api.chat.content import ContentPart, check_read, joined
from molink.api.chat.conversation import (
    AUTO,
    NO_PARAMETERS,
    Conversation,
    Message,
    Tool,
    ToolCall,
    ToolChoice,
    one_turn,
    with_ids,
)
from molink.api.errors import ApiError

THINKING: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {},
    "auto": {},
    "between_tools": {},
    "disabled": {"enable_thinking": False, "thinking": False},
    "enabled": {"enable_thinking": True, "thinking": True},
}
"""Variables with which chat templates switch reasoning, by what is asked for."""


def conversation_of(body: CountTokensBody) -> Conversation:
    """The conversation of a checked body. Raises ApiError for what no model here can go on with.

    The answer goes on with a last message of the assistant, unless that is empty.
    """
    *before, last = body.messages
    is_assistants = last.role == "assistant"
    is_empty = all(isinstance(block, ContentPart) and not block.shown for block in last.content)
    goes_on = is_assistants and not is_empty
    if goes_on:
        _check_continued(last, body)
    messages = before if is_assistants and is_empty else body.messages
    if last.role == "user" and not any(isinstance(one, ToolResultBlock) for one in last.content):
        check_read(last.content, f"messages.{len(before)}.content")
    choice = body.tool_choice
    return Conversation(
        messages=_messages(body.system, messages),
        tools=tuple(_tool(one) for one in body.tools or () if isinstance(one, CustomTool)),
        tool_choice=AUTO if choice is None else _choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        template_kwargs={
            **(THINKING[body.thinking.type] if body.thinking else {}),
            **(body.chat_template_kwargs or {}),
        },
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
    )


def beginning_of(body: CountTokensBody, whole: Conversation) -> Conversation:
    """The conversation of a body that begins like that of the `whole`, without any answer."""
    messages = _messages(body.system, body.messages)
    return replace(
        whole, messages=messages, add_generation_prompt=False, continue_final_message=False
    )


def _messages(
    system: Iterable[ContentPart] | None, messages: Iterable[InputMessage]
) -> tuple[Message, ...]:
    first = [Message("system", joined(system))] if system else []
    return (*first, *with_ids(_turns(messages)))


def _check_continued(last: InputMessage, body: CountTokensBody) -> None:
    """Anthropic's rules for a message that is to be continued."""
    end = last.content[-1]
    if not isinstance(end, ContentPart):
        wrong = "must end with text: add the results of its calls, or leave the block out"
    elif end.text != end.text.rstrip():
        wrong = "must not end with white space: cut it off, the answer begins with it"
    elif body.thinking and body.thinking.type in ("adaptive", "enabled"):
        wrong = "cannot be continued with thinking: leave one of them out"
    else:
        return
    raise ApiError(f"The last message is the assistant's and {wrong}.", param="messages")


def _tool(body: CustomTool) -> Tool:
    described, schema = CLIENT_TOOLS.get(kind_of(body.type or ""), ("", NO_PARAMETERS))
    schema = schema if body.input_schema is None else body.input_schema
    return Tool(body.name, body.description or described, schema, body.strict is True)


def _choice(asked: AnthropicToolChoice) -> ToolChoice:
    match asked.type:
        case "auto" | "none" as mode:
            return ToolChoice(mode)
        case "any":
            return ToolChoice("required")
    if asked.name is None:
        raise ApiError(
            "'tool_choice.name' is missing: add the tool that is to be called.",
            param="tool_choice.name",
        )
    return ToolChoice("named", asked.name)


def _turns(messages: Iterable[InputMessage]) -> list[Message]:
    turns: list[Message] = []
    spoken = chain.from_iterable(map(_spoken, messages))
    for role, said in groupby(spoken, key=attrgetter("role")):
        group = list(said)
        turns += group if role == "tool" else [one_turn(group, "\n")]
    return turns


def _spoken(message: InputMessage) -> Iterator[Message]:
    """Messages in one message of the dialect: results first, as their calls came just before."""
    blocks = message.content
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    for block in results:
        yield Message("tool", joined(block.content), tool_call_id=block.tool_use_id)
    calls = tuple(
        ToolCall(block.id, block.name, block.input)
        for block in blocks
        if isinstance(block, ToolUseBlock)
    )
    text = joined(block for block in blocks if isinstance(block, ContentPart))
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if text or calls or thoughts or not results:
        role: Any = "system" if message.role == "developer" else message.role
        yield Message(role, text, "\n".join(thoughts), calls, tool_call_id=message.tool_call_id)
