"""Which tokens end an answer: what the configs, the tokenizer and the chat template say together.

A fine-tune of a base model often changes one of them and leaves the others, and an answer of which
nobody knows the end goes on into the user's next turn.
"""

from typing import Any

from molink.checkpoint.description import ModelDescription

__all__ = ["end_token_ids"]

SAID = "Whatever the model has said."
"""An answer in a chat template, to see what ends it."""

CHANNELS = "<|channel|>"
"""Mark of templates whose answers have parts, each with an end token of its own."""


def end_token_ids(description: ModelDescription, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end an answer: of the configs, the tokenizer and the chat template, as far as the
    model has rows for them. `tokenizer` is Hugging Face's; None: there is none."""
    own = () if tokenizer is None else (tokenizer.eos_token_id, _turn_end(tokenizer))
    ids = dict.fromkeys((*description.eos_token_ids, *(one for one in own if one is not None)))
    return tuple(one for one in ids if 0 <= one < description.vocabulary_size)


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
    """Ids of the tokens that stand for themselves, by their text."""
    return {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
