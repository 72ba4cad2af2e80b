"""Format in which the served model writes reasoning and calls, found from its chat template.

A template shows the model's own earlier calls and thoughts in its own format, so its marks tell the
format: `<tool_call>` that of Hermes and Qwen, `[TOOL_CALLS]` Mistral's, and so on. An operator may
say it instead (`--tool-parser`, `--reasoning-parser`), in vLLM's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from molink.api.chat.constraints import AnswerGrammars
from molink.api.chat.conversation import Conversation
from molink.api.chat.formats.harmony import FINAL, QUIET, THOUGHTS, HarmonyReader
from molink.api.chat.formats.hermes import HermesReader
from molink.api.chat.formats.listed_calls import (
    GraniteReader,
    JambaReader,
    MistralReader,
    NemotronReader,
    Phi4Reader,
)
from molink.api.chat.formats.llama import LlamaReader
from molink.api.chat.formats.named_calls import DeepseekV3Reader, DeepseekV31Reader, KimiReader
from molink.api.chat.formats.noted_calls import Gemma4Reader, Lfm2Reader
from molink.api.chat.formats.reader import (
    CallWriter,
    HoldingReader,
    PlainText,
    TextReader,
    call_id,
    nine_letters,
)
from molink.api.chat.formats.shapes import CallShape, JsonShape
from molink.api.chat.formats.tagged_calls import (
    DeepseekV4Reader,
    DeepseekV32Reader,
    GlmReader,
    MiniMaxReader,
    QwenCoderReader,
    SeedReader,
)
from molink.api.chat.formats.think import ThinkReader, ThinkTags
from molink.api.chat.lark import LarkWriter
from molink.config.parsers import AUTO, HARMONY_CALLS, HARMONY_REASONING, NONE
from molink.serving.model_card import ChatTokenizer

CALL_READERS: Mapping[str, type[HoldingReader]] = {
    "deepseek_v3": DeepseekV3Reader,
    "deepseek_v31": DeepseekV31Reader,
    "deepseek_v32": DeepseekV32Reader,
    "deepseek_v4": DeepseekV4Reader,
    "gemma4": Gemma4Reader,
    "glm45": GlmReader,
    "granite": GraniteReader,
    "hermes": HermesReader,
    "jamba": JambaReader,
    "kimi_k2": KimiReader,
    "lfm2": Lfm2Reader,
    "llama3_json": LlamaReader,
    "minimax_m2": MiniMaxReader,
    "mistral": MistralReader,
    "nemotron_json": NemotronReader,
    "phi4_mini_json": Phi4Reader,
    "qwen3_coder": QwenCoderReader,
    "seed_oss": SeedReader,
}

TAGS: Mapping[str, ThinkTags] = {
    "qwen3": ThinkTags("<think>", "</think>"),
    "deepseek_r1": ThinkTags("<think>", "</think>", is_implied=True),
    "mistral": ThinkTags("[THINK]", "[/THINK]"),
    "seed_oss": ThinkTags("<seed:think>", "</seed:think>"),
}

DEFAULT = "default"
"""Name of the usual template where there are several."""

HARMONY_MARK = "<|channel|>"

MARKS_OF_CALLS = (
    (HARMONY_MARK, HARMONY_CALLS),
    ("<seed:tool_call>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<]minimax[>", NONE),
    ("｜DSML｜", "deepseek_v32"),
    ("<parameter=", "qwen3_coder"),
    ("<function=", NONE),
    ("<arg_key>", "glm45"),
    ("<tool_calls>[", "jamba"),
    ("<TOOLCALL>", "nemotron_json"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call_argument_begin|>", "kimi_k2"),
    ("<｜tool▁sep｜>", "deepseek_v31"),
    ("<|tool_call|>", "granite"),
    ("<|tool_call>call:", "gemma4"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("functools[", "phi4_mini_json"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters": ', "llama3_json"),
)
"""The first that a template holds decides. Some of them tell of formats that nothing here
reads, and stand before others that they hold."""

OF_A_SISTER = {
    "deepseek_v31": ("```json", "deepseek_v3"),
    "deepseek_v32": ("tool_calls>", "deepseek_v4"),
}
"""Text by which a template of another version than the key's is told, and that version."""

MARKS_OF_REASONING = (
    (HARMONY_MARK, HARMONY_REASONING),
    ("</seed:think>", "seed_oss"),
    ("<seed:think>", "seed_oss"),
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
    special_marks: Mapping[str, int] = field(default_factory=dict)
    """Marks of the format that are tokens and, for grammars, no text, with their ids: the special
    ones, and those that look like `<...>`, whatever they are for the tokenizer."""
    hides_marks: bool = False
    """Whether the text of an answer without special tokens would lack marks."""

    @classmethod
    def of(
        cls, tokenizer: ChatTokenizer | None, tool_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> "ChatFormat":
        """The format of the model with this tokenizer, as far as no parser is named."""
        template = _template(tokenizer, "tool_use")
        if tool_parser == AUTO:
            tool_parser = _found(template, MARKS_OF_CALLS)
            mark, sister = OF_A_SISTER.get(tool_parser, ("", ""))
            if mark and mark in template:
                tool_parser = sister
        if reasoning_parser == AUTO:
            reasoning_parser = _found(_template(tokenizer), MARKS_OF_REASONING)
        marks = _single_tokens(_marks(tool_parser, reasoning_parser), tokenizer)
        hidden = {mark for mark, token_id in marks.items() if _is_hidden(token_id, tokenizer)}
        special = {
            mark: token_id
            for mark, token_id in marks.items()
            if mark in hidden or (mark[0], mark[-1]) == ("<", ">")
        }
        return cls(tool_parser, reasoning_parser, "tools" in template, special, bool(hidden))

    @property
    def is_harmony(self) -> bool:
        """Whether answers come in channels."""
        return self.tool_parser == HARMONY_CALLS or self.reasoning_parser == HARMONY_REASONING

    @property
    def tags(self) -> ThinkTags | None:
        """Tags between which the model thinks; None: it does not, or not between tags."""
        return None if self.is_harmony else TAGS.get(self.reasoning_parser)

    def call_grammar(self, conversation: Conversation, prompt: str) -> str:
        """The grammar, in llguidance's Lark, of the call that the conversation demands of the
        answer to `prompt`, the template's text, or of those that it allows to strict tools; empty:
        neither. Raises ApiError where the format has no way to write a call that is demanded."""
        shape = self._shape
        if shape is None or not conversation.tools:
            return ""
        if conversation.tool_choice.is_forced:
            return self._grammars(prompt).forced_call(conversation, shape)
        is_auto = conversation.tool_choice.mode == "auto"
        if is_auto and any(tool.strict for tool in conversation.tools):
            return self._strict_calls(conversation, shape, self.lead(conversation, prompt))
        return ""

    def _strict_calls(self, conversation: Conversation, shape: CallShape, prompt: str) -> str:
        """Grammar of strict calls; empty where no mark tells a call from text as it begins (an
        answer may be JSON for its own sake, or a mark another thing), and where it has one call
        only."""
        if not isinstance(shape, JsonShape) or shape.is_single:
            return ""
        marks = self._reader.marks if self._reader is not None else ()
        begin = shape.begin or shape.open
        mark = next((one for one in marks if begin.startswith(one)), None)
        return self._grammars(prompt).strict_calls(conversation, shape, mark) if mark else ""

    def text_grammar(self, grammar: str, conversation: Conversation, prompt: str) -> str:
        """The grammar, as it travels, of a whole answer to `prompt` whose text matches
        `grammar`; where the model may call tools, it may do that instead."""
        if self.is_harmony and conversation.continue_final_message:
            return grammar
        grammars = self._grammars(self.lead(conversation, prompt))
        begin = FINAL if self.is_harmony else ""
        if self._may_call(conversation) and self._shape is not None:
            if not self.call_grammar(conversation, prompt):
                tools = tuple(replace(tool, strict=False) for tool in conversation.tools)
                conversation = replace(conversation, tools=tools)
            return grammars.call_or_text(conversation, self._shape, grammar, begin)
        return grammars.after_thoughts(grammar, begin)

    def _grammars(self, prompt: str) -> AnswerGrammars:
        tags = THOUGHTS if self.is_harmony else self.tags
        return AnswerGrammars(tags, prompt, LarkWriter(self.special_marks))

    @property
    def _reader(self) -> type[HoldingReader] | None:
        """Reader of calls that need no channels; None: there is none."""
        return CALL_READERS.get(self.tool_parser)

    @property
    def _shape(self) -> CallShape | None:
        """The layout of calls; None: they are not read."""
        if self.tool_parser == HARMONY_CALLS:
            return HarmonyReader.shape
        if self.tool_parser == "mistral" and "[ARGS]" in self.special_marks:
            return MistralReader.named_shape
        return self._reader.shape if self._reader is not None else None

    def lead(self, conversation: Conversation, prompt: str) -> str:
        """Text before an answer to `prompt`, the template's text, as far as it tells whether the
        model thinks first: where it goes on with a message it has thought, unless the message
        itself ends within thoughts."""
        if self.tags is None or not conversation.continue_final_message:
            return prompt
        text = conversation.messages[-1].text
        is_open = text.rfind(self.tags.open) > text.rfind(self.tags.close)
        return self.tags.open if is_open else self.tags.close

    def quiet(self, conversation: Conversation, prompt: str) -> tuple[tuple[str, str, bool], ...]:
        """Marks around thoughts and calls in an answer to `prompt`, the template's text, as
        `SamplingParams.quiet` has them."""
        is_read = self._may_call(conversation) and self._shape is not None
        if is_read and conversation.tool_choice.is_forced:
            return (("", "", False),)
        if self.is_harmony:
            return QUIET[1:] if conversation.continue_final_message else QUIET
        pairs: list[tuple[str, str, bool]] = []
        if self.tags is not None:
            is_inside = self.tags.begins_inside(self.lead(conversation, prompt))
            pairs.append(("" if is_inside else self.tags.open, self.tags.close, not is_inside))
        if self._reads_calls(conversation) and self._reader is not None:
            pairs += self._reader.spans()
        return tuple(pairs)

    def _may_call(self, conversation: Conversation) -> bool:
        return self._reads_calls(conversation) and not conversation.continue_final_message

    def _reads_calls(self, conversation: Conversation) -> bool:
        return bool(conversation.tools) and conversation.tool_choice.mode != "none"

    def reader(self, conversation: Conversation, prompt: str) -> TextReader:
        """A reader of one answer to `conversation`; `prompt` is the template's text."""
        tools = {tool.name: tool.parameters for tool in conversation.tools}
        calls = CallWriter(
            tools,
            nine_letters if self.tool_parser == "mistral" else call_id,
            is_strict=any(tool.strict for tool in conversation.tools),
        )
        reads_calls = self._reads_calls(conversation)
        if self.is_harmony:
            return HarmonyReader(
                calls,
                reads_calls=reads_calls and self.tool_parser == HARMONY_CALLS,
                reads_reasoning=self.reasoning_parser == HARMONY_REASONING,
            )
        rest = self._reader(calls) if reads_calls and self._reader else PlainText()
        if self.tags is None:
            return rest
        is_inside = self.tags.begins_inside(self.lead(conversation, prompt))
        return ThinkReader(self.tags, rest, inside=is_inside)


def _template(tokenizer: ChatTokenizer | None, name: str = DEFAULT) -> str:
    """A tokenizer's template; of several the template of this name, as the library takes it with
    tools, else the default one."""
    found = tokenizer.chat_template if tokenizer is not None else None
    return found.get(name, found[DEFAULT]) if isinstance(found, dict) else found or ""


def _found(template: str, marks: tuple[tuple[str, str], ...]) -> str:
    return next((name for mark, name in marks if mark in template), NONE)


def _marks(tool_parser: str, reasoning_parser: str) -> tuple[str, ...]:
    """Marks that readers look for in the text."""
    if tool_parser == HARMONY_CALLS or reasoning_parser == HARMONY_REASONING:
        return HarmonyReader.marks
    reader, tags = CALL_READERS.get(tool_parser), TAGS.get(reasoning_parser)
    marks = reader.marks if reader is not None else ()
    return (*marks, tags.open, tags.close) if tags is not None else marks


def _single_tokens(marks: tuple[str, ...], tokenizer: ChatTokenizer | None) -> dict[str, int]:
    """Marks that are one token, with its id."""
    if tokenizer is None:
        return {}
    token_ids = {mark: tokenizer.encode(mark, add_special_tokens=False) for mark in marks}
    return {mark: ids[0] for mark, ids in token_ids.items() if len(ids) == 1}


def _is_hidden(token_id: int, tokenizer: ChatTokenizer | None) -> bool:
    """Whether an answer's text usually leaves this token out."""
    return tokenizer is not None and not tokenizer.decode([token_id], skip_special_tokens=True)
