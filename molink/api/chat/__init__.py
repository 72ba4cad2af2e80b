"""Conversations in, parts of answers out, whatever the dialect.

A dialect (OpenAI's, Anthropic's, ...) makes a `Conversation` of its body, and `chat_prompt` a
`ChatPrompt` with token ids of that. While the answer is generated, `ChatPrompt.reader` turns token
events into parts: `ReasoningDelta`, `TextDelta`, `ToolCallDelta`, and `Finished` at the end. For an
answer that is sent whole, `ChatPrompt.reply` puts them together.
"""

from molink.api.chat.conversation import AUTO, Conversation, Message, Tool, ToolCall, ToolChoice
from molink.api.chat.format import ChatFormat
from molink.api.chat.parts import Finished, Part, ReasoningDelta, Reply, TextDelta, ToolCallDelta
from molink.api.chat.prompt import ChatPrompt, PartReader, chat_prompt

__all__ = [
    "AUTO",
    "ChatFormat",
    "ChatPrompt",
    "Conversation",
    "Finished",
    "Message",
    "Part",
    "PartReader",
    "ReasoningDelta",
    "Reply",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "chat_prompt",
]
