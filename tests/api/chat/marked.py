"""Tokenizers in which the marks of a family's calls are tokens of their own, and walks over masks.

The masks are those of the tail. A walk draws tokens that they allow, marks and ends more often than
others, so that these come soon and in places where text was possible, too.
"""

import copy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer

from molink.api.chat import ChatFormat, ChatPrompt, Reply
from molink.api.chat.format import CALL_READERS, TAGS
from molink.api.chat.formats.harmony import HarmonyReader
from molink.checkpoint.description import ModelDescription
from molink.config.parsers import HARMONY_CALLS, HARMONY_REASONING
from molink.engine.sampling.grammar import Grammars
from molink.engine_protocol.drawn import GrammarState
from molink.models import DEMO_MODEL_DIR
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams

FAMILIES = (*sorted(CALL_READERS), HARMONY_CALLS)

KINDS = ("special", "ordinary", "text")
"""What the marks are: special tokens, added tokens that are not special, or no tokens."""

WALK_TOKENS_MAX = 400

DEMO = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)


def marks_of(family: str) -> tuple[str, ...]:
    if family == HARMONY_CALLS:
        return HarmonyReader.marks
    tags = TAGS["qwen3"]
    return (*CALL_READERS[family].marks, tags.open, tags.close)


def tokenizer_of(family: str, kind: str) -> Any:
    """The demo's, with a family's marks in it."""
    tokenizer = copy.deepcopy(DEMO)
    if kind != "text":
        special = kind == "special"
        marks = [AddedToken(m, special=special, normalized=False) for m in marks_of(family)]
        tokenizer.add_tokens(marks, special_tokens=special)
    tokenizer.chat_template = "{{ tools }}"
    return tokenizer


def format_of(family: str, tokenizer: Any, reasoning: str = "qwen3") -> ChatFormat:
    is_harmony = family == HARMONY_CALLS
    return ChatFormat.of(tokenizer, family, HARMONY_REASONING if is_harmony else reasoning)


def grammars_of(tokenizer: Any) -> Grammars:
    eos = (tokenizer.eos_token_id,)
    size = len(tokenizer)
    model = ModelDescription("walk", Path("walk"), "llama", 1, 8, size, 64, eos, "float32")
    return Grammars(tokenizer, model, torch.device("cpu"))


def walk(grammars: Grammars, tokenizer: Any, grammar: str, seed: int) -> tuple[list[int], bool]:
    """Tokens that the masks allow, and whether the answer is whole."""
    random, drawn = Random(seed), list[int]()
    if not grammar:
        return drawn, False
    sampling = SamplingParams(max_tokens=WALK_TOKENS_MAX, grammar=grammar)
    constraint = grammars.constrain(Admission(1, 1, 500, sampling, output=()))
    first_mark = len(DEMO)
    while len(drawn) < WALK_TOKENS_MAX:
        allowed = np.flatnonzero(~constraint.forbidden().numpy())
        marks = allowed[(allowed >= first_mark) | (allowed == tokenizer.eos_token_id)]
        pool = marks if len(marks) and random.random() < 0.5 else allowed
        token_id = int(random.choice(pool))
        drawn.append(token_id)
        if token_id == tokenizer.eos_token_id:
            return drawn[:-1], True
        state = constraint.take(token_id)
        assert state is not GrammarState.FAILED, tokenizer.decode(drawn)
        if state is GrammarState.ENDED:
            return drawn, True
    return drawn, False


def read(prompt: ChatPrompt, tokenizer: Any, drawn: list[int]) -> Reply:
    """What the API makes of an answer of these tokens."""
    text = tokenizer.decode(drawn, skip_special_tokens=prompt.skip_special_tokens)
    return prompt.reply(text, "stop")
