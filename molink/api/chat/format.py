"""How the served model writes reasoning and calls, found from its chat template.

A template shows the model's own earlier calls and thoughts in its own format, so its marks tell the
format: `<tool_call>` that of Hermes and Qwen, `[TOOL_CALLS]` Mistral's, and so on. An operator may
say it instead (`--tool-parser`, `--reasoning-parser`), in vLLM's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from molink.api.chat.constraints import Constraint, forced_call
from molink.api.chat.conversation import Conversation
from molink.api.chat.formats.harmony import FINAL, HarmonyReader
from molink.api.chat.formats.hermes import HermesReader
from molink.api.chat.formats.llama import LlamaReader
from molink.api.chat.formats.mistral import MistralReader
from molink.api.chat.formats.qwen_coder import QwenCoderReader
from molink.api.chat.formats.reader import (
    CallWriter,
    HoldingReader,
    PlainText,
    TextReader,
    call_id,
    nine_letters,
)
from molink.api.chat.formats.think import ThinkReader, ThinkTags
from molink.config.parsers import AUTO, HARMONY_CALLS, HARMONY_REASONING, NONE
from molink.serving.service import ChatTokenizer

__all__ = ["ChatFormat"]

CALL_READERS: Mapping[str, type[HoldingReader]] = {
    "hermes": HermesReader,
    "llama3_json": LlamaReader,
    "mistral": MistralReader,
    "qwen3_coder": QwenCoderReader,
}

TAGS: Mapping[str, ThinkTags] = {
    "qwen3": ThinkTags("<think>", "</think>"),
    "deepseek_r1": ThinkTags("<think>", "</think>", is_implied=True),
    "mistral": ThinkTags("[THINK]", "[/THINK]"),
}

HARMONY_MARK = "<|channel|>"

MARKS_OF_CALLS = (
    (HARMONY_MARK, HARMONY_CALLS),
    ("<parameter=", "qwen3_coder"),
    ("<function=", NONE),
    ("<arg_key>", NONE),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters": ', "llama3_json"),
)
"""The first that a template holds decides. Two of them stand within `<tool_call>` for formats that
nothing here reads."""

MARKS_OF_REASONING = (
    (HARMONY_MARK, HARMONY_REASONING),
    ("</think>", "qwen3"),
    ("[THINK]", "mistral"),
)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Format of a model's answers: which parser reads calls, which reasoning."""

    tool_parser: str = NONE
    reasoning_parser: str = NONE
    takes_tools: bool = False
    """Whether the template shows tools to the model."""
    hides_marks: bool = False
    """Whether marks of the format are special tokens, which an answer's text usually leaves out."""

    @classmethod
    def of(
        cls, tokenizer: ChatTokenizer | None, tool_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> "ChatFormat":
        """The format of the model with this tokenizer, as far as no parser is named."""
        template = _template(tokenizer)
        if tool_parser == AUTO:
            tool_parser = _found(template, MARKS_OF_CALLS)
        if reasoning_parser == AUTO:
            reasoning_parser = _found(template, MARKS_OF_REASONING)
        marks = _marks(tool_parser, reasoning_parser)
        hides_marks = tokenizer is not None and any(_is_hidden(mark, tokenizer) for mark in marks)
        return cls(tool_parser, reasoning_parser, "tools" in template, hides_marks)

    @property
    def is_harmony(self) -> bool:
        """Whether answers come in channels."""
        return self.tool_parser == HARMONY_CALLS or self.reasoning_parser == HARMONY_REASONING

    @property
    def tags(self) -> ThinkTags | None:
        """Tags between which the model thinks; None: it does not, or not between tags."""
        return None if self.is_harmony else TAGS.get(self.reasoning_parser)

    def constraint(
        self, conversation: Conversation, prompt: str, *, has_grammar: bool = False
    ) -> Constraint:
        """What the conversation demands of the answer to `prompt`, the template's text;
        `has_grammar`: whether the request asks for a text in a grammar of its own. Raises ApiError
        where the format has no way to write it."""
        if conversation.tools and conversation.tool_choice.is_forced:
            return forced_call(conversation, self.tool_parser, self.tags, prompt)
        begins_anew = not conversation.continue_final_message
        return Constraint(FINAL if self.is_harmony and has_grammar and begins_anew else "")

    def lead(self, conversation: Conversation, prompt: str) -> str:
        """What stands before an answer to `prompt`, the template's text, as far as it tells whether
        the model thinks first: where it goes on with a message it has thought, unless the message
        itself ends within thoughts."""
        if self.tags is None or not conversation.continue_final_message:
            return prompt
        text = conversation.messages[-1].text
        is_open = text.rfind(self.tags.open) > text.rfind(self.tags.close)
        return self.tags.open if is_open else self.tags.close

    def reader(self, conversation: Conversation, prompt: str) -> TextReader:
        """A reader of one answer to `conversation`; `prompt` is the template's text."""
        tools = {tool.name: tool.parameters for tool in conversation.tools}
        calls = CallWriter(tools, nine_letters if self.tool_parser == "mistral" else call_id)
        reads_calls = bool(tools) and conversation.tool_choice.mode != "none"
        if self.is_harmony:
            return HarmonyReader(
                calls,
                reads_calls=reads_calls and self.tool_parser == HARMONY_CALLS,
                reads_reasoning=self.reasoning_parser == HARMONY_REASONING,
            )
        has_reader = reads_calls and self.tool_parser in CALL_READERS
        rest = CALL_READERS[self.tool_parser](calls) if has_reader else PlainText()
        if self.tags is None:
            return rest
        return ThinkReader(
            self.tags, rest, inside=self.tags.begins_inside(self.lead(conversation, prompt))
        )


def _template(tokenizer: ChatTokenizer | None) -> str:
    """A tokenizer's template; all of them together, where it has several."""
    found = tokenizer.chat_template if tokenizer is not None else None
    return "\n".join(found.values()) if isinstance(found, dict) else found or ""


def _found(template: str, marks: tuple[tuple[str, str], ...]) -> str:
    return next((name for mark, name in marks if mark in template), NONE)


def _marks(tool_parser: str, reasoning_parser: str) -> tuple[str, ...]:
    """What readers look for in the text."""
    if tool_parser == HARMONY_CALLS or reasoning_parser == HARMONY_REASONING:
        return HarmonyReader.marks
    reader, tags = CALL_READERS.get(tool_parser), TAGS.get(reasoning_parser)
    marks = reader.marks if reader is not None else ()
    return (*marks, tags.open, tags.close) if tags is not None else marks


def _is_hidden(mark: str, tokenizer: ChatTokenizer) -> bool:
    token_ids = tokenizer.encode(mark, add_special_tokens=False)
    return tokenizer.decode(token_ids, skip_special_tokens=True) != tokenizer.decode(token_ids)
