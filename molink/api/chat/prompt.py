"""From a conversation to the prompt's token ids, and from the answer's tokens to its parts."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from molink.api.chat.conversation import ARGUMENT_READERS, Conversation
from molink.api.chat.format import ChatFormat
from molink.api.chat.formats.harmony import FINAL
from molink.api.chat.formats.reader import TextReader
from molink.api.chat.parts import Finished, Part, ReasoningDelta, Reply, ToolCallDelta
from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.requests import empty_prompt, encoded, on_loop_or_thread, tokenizer_of
from molink.config.parsers import NONE
from molink.serving.model_card import ChatTokenizer, ModelCard
from molink.serving.token_events import TokenEvent
from molink_scheduler.request import GRAMMAR_CHARS_MAX
from molink_scheduler.token_ids import common_blocks

RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of the tokenizer's own, not variables of a template."""


PIECE_CHARS = 512
"""Characters of a whole answer at a time: readers hold little then, and what they do with each mark
takes as long as what they hold."""


UTF_32_BYTES = 4
"""Bytes of each character, where all have as many."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Prompt of a conversation, and how the answers to it are read."""

    conversation: Conversation
    format: ChatFormat
    text: str
    """The prompt as the template wrote it."""
    call_grammar: str
    """Grammar, in llguidance's Lark, of the call that the answer must be; empty: none."""
    token_ids: tuple[int, ...]

    @property
    def skip_special_tokens(self) -> bool:
        """Whether special tokens may be left out of the answer's text: not where they are marks
        that are read."""
        return not self.format.hides_marks

    @property
    def quiet(self) -> tuple[tuple[str, str, bool], ...]:
        """Marks between which stop strings end nothing: they count in the answer's text."""
        return self.format.quiet(self.conversation, self.text)

    def reader(self) -> "PartReader":
        """A reader of one answer."""
        text = self.format.reader(self.conversation, self.text)
        is_within_text = self.format.is_harmony and self.conversation.continue_final_message
        return PartReader(text, self.conversation, FINAL if is_within_text else "")

    def grammar_of_answer(self, grammar: str) -> str:
        """The grammar of a whole answer whose text, behind what the model thinks, must match
        `grammar`, as it travels. Raises ApiError when that is too long."""
        whole = ""
        if grammar:
            whole = self.format.text_grammar(grammar, self.conversation, self.text)
        if len(whole) > GRAMMAR_CHARS_MAX:
            raise ApiError(
                f"The answer's grammar is longer than {GRAMMAR_CHARS_MAX} characters: simplify it."
            )
        return whole

    def reply(self, text: str, finish_reason: str | None) -> Reply:
        """A whole answer's parts put together. A call that is broken leaves everything text: here
        nothing has been sent yet. One that the length cut off is left out behind whole ones."""
        reply = self.reader().whole(text, finish_reason)
        if finish_reason == "length" and len(reply.tool_calls) > 1:
            reply.drop_last_if_broken()
        if not reply.has_broken_call:
            return reply
        plain = replace(self, conversation=replace(self.conversation, tools=()))
        return plain.reader().whole(text, finish_reason)


class PartReader:
    """Reader of one answer: token events in, typed parts out."""

    def __init__(self, text: TextReader, conversation: Conversation, begin: str = "") -> None:
        self._text = text
        self._begun = text.push(begin) if begin else []
        """Parts of what the answer's prompt has begun."""
        self._calls_max = None if conversation.parallel_tool_calls else 1
        self._shows_reasoning = conversation.include_reasoning
        self._has_call = False

    def push(self, event: TokenEvent) -> list[Part]:
        """Parts that became clear with an event; with the last one `Finished`, too."""
        parts, self._begun = self._begun, []
        for one in event.by_token():
            parts = parts + self._text.push(one.text)
        if event.finish_reason is not None:
            parts = parts + self._text.finish()
        parts = [part for part in parts if self._is_shown(part)]
        self._has_call = self._has_call or any(isinstance(one, ToolCallDelta) for one in parts)
        if event.finish_reason is not None:
            to_call = self._has_call and event.finish_reason == "stop"
            parts.append(Finished("tool_calls" if to_call else event.finish_reason))
        return parts

    def whole(self, text: str, finish_reason: str | None) -> Reply:
        """The reply of an answer's whole text."""
        pieces = (text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS))
        events = [TokenEvent((), piece) for piece in pieces]
        events.append(TokenEvent((), "", finish_reason=finish_reason or "stop"))
        return Reply.of(part for event in events for part in self.push(event))

    def _is_shown(self, part: Part) -> bool:
        match part:
            case ReasoningDelta():
                return self._shows_reasoning
            case ToolCallDelta(index):
                return self._calls_max is None or index < self._calls_max
            case _:
                return True


async def chat_prompt(
    conversation: Conversation, card: ModelCard, format: ChatFormat
) -> ChatPrompt:
    """The prompt of a conversation in the model's own chat template, up to the assistant's turn,
    or within its last message where the answer goes on with that.

    Raises ApiError where the model cannot have this conversation: it has no template, which takes
    no tools, or refuses the messages.
    """
    tokenizer = tokenizer_of(card, conversation.param)
    _check(conversation, tokenizer, format)
    render = partial(_rendered, tokenizer, conversation, format)
    text = await on_loop_or_thread(conversation.chars, render)
    grammar = format.call_grammar(conversation, text)
    token_ids = await encoded(tokenizer, text, add_special_tokens=False)
    if not token_ids:
        raise empty_prompt(conversation.param)
    return ChatPrompt(conversation, format, text, grammar, token_ids)


async def tokens_alike(prompt: ChatPrompt, other: Conversation, card: ModelCard) -> int:
    """How many tokens of a prompt stand where another conversation's would be the same; 0 where
    the template refuses that one. The shorter side is counted: half a token is no matter."""
    tokenizer = tokenizer_of(card, other.param)
    render = partial(_rendered, tokenizer, other, prompt.format)
    try:
        text = await on_loop_or_thread(other.chars, render)
    except ApiError:
        return 0
    whole, begun = (one.encode("utf-32-le", "surrogatepass") for one in (prompt.text, text))
    chars = common_blocks(whole, begun, UTF_32_BYTES)
    is_front = chars <= len(prompt.text) // 2
    part = prompt.text[:chars] if is_front else prompt.text[chars:]
    tokens = len(await encoded(tokenizer, part, add_special_tokens=False))
    return tokens if is_front else max(0, len(prompt.token_ids) - tokens)


def _check(conversation: Conversation, tokenizer: ChatTokenizer, format: ChatFormat) -> None:
    if not tokenizer.chat_template:
        raise ApiError(
            "This model has no chat template: use /v1/completions with a prompt instead.",
            param=conversation.param,
        )
    reserved = RESERVED_KWARGS.intersection(conversation.template_kwargs)
    if reserved:
        raise ApiError(
            f"'chat_template_kwargs' cannot set '{min(reserved)}': leave it out.",
            param="chat_template_kwargs",
        )
    if conversation.tool_choice.mode != "none":
        _check_tools(conversation, format)
    if conversation.continue_final_message:
        _check_continued(conversation)


def _check_continued(conversation: Conversation) -> None:
    if conversation.tool_choice.is_forced:
        raise ApiError(
            "An answer that goes on with the last message cannot be made to call a tool: leave "
            "'tool_choice' out, or end with a message of the user.",
            param="tool_choice",
        )
    if conversation.messages[-1].tool_calls:
        raise ApiError(
            "The last message calls tools, so there is no text to go on with: add the results of "
            "its calls.",
            param=conversation.param,
        )


def _check_tools(conversation: Conversation, format: ChatFormat) -> None:
    choice = conversation.tool_choice
    if not conversation.tools and choice.is_forced:
        raise ApiError("'tool_choice' needs 'tools': add them.", param="tool_choice")
    if not conversation.tools:
        return
    if choice.name and choice.name not in {tool.name for tool in conversation.tools}:
        raise ApiError(
            f"'tool_choice' names '{choice.name[:NAME_CHARS_SHOWN]}', which is not among 'tools': "
            "add it there.",
            param="tool_choice",
        )
    if not format.takes_tools:
        raise ApiError(
            "This model's chat template takes no tools: leave 'tools' out.",
            param="tools",
            code="unsupported_parameter",
        )
    if format.tool_parser == NONE:
        raise ApiError(
            "Nobody knows how this model writes calls of tools: leave 'tools' out, or let the "
            "operator start the server with --tool-parser.",
            param="tools",
            code="unsupported_parameter",
        )


def _rendered(tokenizer: ChatTokenizer, conversation: Conversation, format: ChatFormat) -> str:
    """The template's text. Most templates take the arguments of earlier calls as objects; for one
    that fails with these there are other ways, and the first failure counts where all fail."""
    first, *others = ARGUMENT_READERS
    try:
        return _templated_prompt(tokenizer, conversation, format, first)
    except ApiError:
        if any(message.tool_calls for message in conversation.messages):
            for read in others:
                with suppress(ApiError):
                    return _templated_prompt(tokenizer, conversation, format, read)
        raise


def _templated_prompt(
    tokenizer: ChatTokenizer,
    conversation: Conversation,
    format: ChatFormat,
    read: Callable[[str], Any],
) -> str:
    messages = conversation.templated_messages(reads_thinking=format.is_harmony, read=read)
    options = conversation.variables
    if (tools := conversation.templated_tools()) is not None:
        options["tools"] = tools
    if conversation.continue_final_message:
        options["continue_final_message"] = True
    try:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=conversation.add_generation_prompt,
            tokenize=False,
            **options,
        )
    except Exception as error:
        # A template is the checkpoint's program over the user's values: it may raise anything.
        raise ApiError(
            f"The model's chat template refuses these messages ({str(error)[:200]}): change their "
            "order or roles.",
            param=conversation.param,
        ) from None
    return str(text)
