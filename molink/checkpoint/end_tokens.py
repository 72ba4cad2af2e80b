"""Tokens that end an answer, by the configs, the tokenizer and the chat template together.

A fine-tune of a base model often changes one of them and leaves the others, and an answer of which
nobody knows the end goes on into the user's next turn, or behind a call into its result. So tokens
that by their names end a call end an answer too, as in llama.cpp.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from molink.checkpoint.description import ModelDescription

END_NAMES = (
    "<eos> <|endoftext|> <|end_of_text|> <\uff5cend\u2581of\u2581sentence\uff5c> [EOS] "
    "<|eot_id|> <|eom_id|> <|im_end|> <|end|> <end_of_turn> <turn|> [e~[ <EOT> _<EOT> [EOT] "
    "<end_of_utterance> <|return|> <|call|> <|calls|> <|flush|> <|tool_response>"
)
"""Tokens that end a text, a turn or a call whatever else is said: files rarely name several."""

CALL_ENDS = "<|eom_id|> <|call|> <|calls|>"
"""Tokens that end calls alone: only these are taken where configs and a template say the rest."""

ENDS_A_MESSAGE = "<|end|>"
"""Token that ends a turn in some models; where others end one in channels, it ends a thought."""

CHANNEL_ENDS = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})
"""Tokens of models whose turns have channels."""

SAID = "Whatever the model has said."
"""An answer in a chat template, to see what ends it."""

CHANNELS = "<|channel|>"
"""Mark of templates whose answers have parts, each with an end token of its own."""


def end_token_ids(description: ModelDescription, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end an answer: of the configs, the tokenizer and the chat template, as far as the
    model has rows for them. `tokenizer` is Hugging Face's; None: there is none."""
    ids: Iterable[int | None] = description.eos_token_ids
    if tokenizer is not None:
        own = (tokenizer.eos_token_id, _turn_end(tokenizer))
        ids = with_named_ends([*ids, *own], _added_tokens(tokenizer), CALL_ENDS)
    return tuple(one for one in ids if one is not None and 0 <= one < description.vocabulary_size)


def with_named_ends(
    given: Iterable[int | None], special: Mapping[str, int], names: str = END_NAMES
) -> list[int]:
    """The end tokens that are given, None left out, and those of a vocabulary's special tokens that
    are ends by their names."""
    named = sorted(special[name] for name in names.split() if name in special)
    ends = dict.fromkeys(one for one in (*given, *named) if one is not None)
    if any(one <= special.keys() for one in CHANNEL_ENDS) and ENDS_A_MESSAGE in special:
        ends.pop(special[ENDS_A_MESSAGE], None)
    return list(ends)


def _turn_end(tokenizer: Any) -> int | None:
    """The token right behind an answer in the chat template; None: there is none."""
    if not tokenizer.chat_template or CHANNELS in str(tokenizer.chat_template):
        return None
    asked = {"role": "user", "content": "Say something."}
    turns = [asked, {"role": "assistant", "content": SAID}]
    try:
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=False, tokenize=False)
    except Exception:  # A template is a program of the checkpoint's: it may raise anything.
        return None
    _, found, behind = str(text).rpartition(SAID)
    ends = _added_tokens(tokenizer)
    begun = [one for one in ends if found and behind.lstrip().startswith(one)]
    return ends[max(begun, key=len)] if begun else None


def _added_tokens(tokenizer: Any) -> dict[str, int]:
    """Ids of the tokens that stand for themselves, by their text; a tokenizer of no known form
    tells none."""
    found = getattr(tokenizer, "added_tokens_decoder", {})
    return {str(token): number for number, token in found.items()}
