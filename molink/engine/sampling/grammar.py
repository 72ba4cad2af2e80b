"""Grammar masks: the words of the vocabulary that may come next in a sequence that must match.

The tail knows a token as soon as it has drawn it, and needs the mask of the next one a round later.
So the mask is computed in a thread meanwhile: while the sequence goes around the ring and through
this stage's layers. A row whose mask is not ready by then sits the step out (`late_draws`). A
grammar is compiled in another thread, while the prompt is computed; the library (llguidance) lets
go of the interpreter during both.

Where a grammar leaves one text only, the library allows one way to cut it into words, and says
which: those words go home as drafts, and all of them come true.

Behind drafts there is a turn for each, made in the thread too, from copies; one that the grammar
forbids has none, nor has one with which it ends. Nobody changes a matcher of which copies may still
be made.

A matcher's state follows from the grammar and the tokens alone. So a sequence that was preempted,
or that goes on in another ring, replays its output and has the same masks again.

Rejected: to compile automata over the whole vocabulary ahead of time, as older libraries do, takes
seconds for a schema; to compute the masks in the step takes a volunteer's slow core as long for a
batch as the layers.

Shapes: W vocabulary size.
"""

import json
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.end_tokens import end_token_ids
from molink.engine_protocol.drawn import GrammarState
from molink.errors import MolinkError
from molink.json_object import JsonObject
from molink.wire.grammar import parser_limits
from molink_scheduler.batch import Admission

COMPILED_MAX = 16
"""Grammars kept compiled, the latest used: requests of one application share theirs, and `n`
choices of a request always do. Each takes up to some megabytes."""

NICENESS = 5
"""Niceness of the step's thread: links go first, and whoever works at this PC."""

GOOD_ENDS = ("NoExtension", "NoExtensionBias", "EndOfSentence")


class GrammarError(MolinkError):
    """Raised when a sequence cannot go on within its grammar: too complex, or no word fits."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """Matcher after some tokens, with the mask of what may come next."""

    matcher: LLMatcher
    forbidden_W: torch.Tensor


class Grammars:
    """Compiler of a tail's grammars, and the thread in which their masks are computed."""

    def __init__(self, tokenizer: Any, model: ModelDescription, device: torch.device) -> None:
        """The `tokenizer` is Hugging Face's, a fast one; the masks will be on `device`."""
        self._vocabulary_size = model.vocabulary_size
        self._device = device
        self._compiling = ThreadPoolExecutor(1, "grammar-compiler", _give_way)
        self._masking = ThreadPoolExecutor(1, "grammar-mask", _give_way)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        vocabulary_size = max(model.vocabulary_size, len(tokenizer))
        eos = list(end_token_ids(model, tokenizer)) or None
        self._tokenizer = self._compiling.submit(_vocabulary, tokenizer, vocabulary_size, eos)

    def constrain(self, admission: Admission) -> "Constraint":
        """Begin to compile the grammar of a sequence and to replay its output."""
        grammar, output = admission.sampling.grammar, list(admission.output)
        return Constraint(self, self._compiling.submit(self._first_turn, grammar, output))

    def next_turn(self, matcher: LLMatcher) -> Future[_Turn]:
        """The mask of a matcher that has taken a token, beside the step."""
        return self._masking.submit(self._turn, matcher)

    def turn_behind(self, turn: Future[_Turn], draft: int) -> Future[_Turn]:
        """The mask as if a draft had been taken next, beside the step."""
        return self._masking.submit(self._turn_behind, turn, draft)

    def _turn_behind(self, turn: Future[_Turn], draft: int) -> _Turn:
        matcher = turn.result().matcher.deep_copy()
        if not matcher.consume_token(draft) or matcher.is_stopped():
            raise GrammarError("nothing follows the draft")
        return self._turn(matcher)

    def _first_turn(self, grammar: str, output: list[int]) -> _Turn:
        matcher = self._fresh_matcher(grammar)
        if matcher.try_consume_tokens(output) < len(output):
            raise GrammarError("the output so far does not match")
        return self._turn(matcher)

    def _fresh_matcher(self, grammar: str) -> LLMatcher:
        """A matcher before the first token."""
        if grammar not in self._compiled:
            tokenizer, limits = self._tokenizer.result(), parser_limits()
            self._compiled[grammar] = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
            if len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return self._compiled[grammar].deep_copy()

    def _turn(self, matcher: LLMatcher) -> _Turn:
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        allowed_W = np.unpackbits(bits, count=self._vocabulary_size, bitorder="little")
        if not allowed_W.any():
            raise GrammarError("no word of the vocabulary fits")
        return _Turn(matcher, torch.from_numpy(allowed_W == 0).to(self._device))


class Constraint:
    """Grammar of one sequence, as far as it has come. For the step's thread."""

    def __init__(self, grammars: Grammars, turn: Future[_Turn]) -> None:
        self._grammars = grammars
        self._turn = turn
        self._is_copied = False
        self.forced: tuple[int, ...] = ()
        """Words that alone may follow the last one that was taken, of which some were wanted."""

    def is_ready(self, within_s: float = 0.0) -> bool:
        """Whether it is known by then what may come next."""
        return bool(wait([self._turn], within_s).done)

    def forbidden(self) -> torch.Tensor:
        """Mask [W] on the device, true where a word must not come next; waits until it is known.
        Raises GrammarError."""
        return self._ready().forbidden_W

    def behind(self, draft: int) -> "Constraint":
        """Constraint of the sequence as if a draft came next: its mask is computed from now on."""
        self._is_copied = True
        return Constraint(self._grammars, self._grammars.turn_behind(self._turn, draft))

    def take(self, token_id: int, wants: int = 0) -> GrammarState:
        """Go on with the token that was drawn: the next mask is computed from now on. At most
        `wants` words are found that are `forced` behind it."""
        matcher, self.forced = self._ready().matcher, ()
        if self._is_copied:
            matcher, self._is_copied = matcher.deep_copy(), False
        if not matcher.consume_token(token_id):
            return GrammarState.FAILED
        if matcher.is_stopped():
            is_good = matcher.is_accepting() and matcher.stop_reason() in GOOD_ENDS
            return GrammarState.ENDED if is_good else GrammarState.FAILED
        if wants:  # Before another thread has the matcher.
            self.forced = tuple(matcher.compute_ff_tokens()[:wants])
        self._turn = self._grammars.next_turn(matcher)
        return GrammarState.OPEN

    def _ready(self) -> _Turn:
        try:
            return self._turn.result()
        except (ValueError, RuntimeError) as error:  # Of the library, and of its tokenizer.
            raise GrammarError(str(error)) from error


def _vocabulary(tokenizer: Any, vocabulary_size: int, eos: list[int] | None) -> LLTokenizer:
    """The library's view of a model's vocabulary, in which no text is made of special tokens.

    For the library every added token that looks like `<...>` is special: no text, whatever it is
    for the tokenizer. But where a grammar leaves one text only it asks the tokenizer for that
    text's tokens, and would offer a special one and refuse it when it comes. Under a name that no
    text holds a special token is offered only where a grammar names it by its id."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise ValueError("only fast tokenizers are supported")
    whole = json.loads(fast.to_str())
    whole |= {"padding": None, "truncation": None}
    names = {
        token["content"]: f"<\ue000{token['id']}>"
        for token in whole["added_tokens"]
        if token["special"] or (token["content"][:1], token["content"][-1:]) == ("<", ">")
    }
    for token in whole["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    _rename(whole["model"], names)
    eos = eos or [tokenizer.eos_token_id]
    return LLTokenizer(json.dumps(whole), n_vocab=vocabulary_size, eos_token=eos)


def _rename(model: JsonObject, names: dict[str, str]) -> None:
    """Call words of a tokenizer's model by other names, which no merges make."""
    words = model["vocab"]
    if isinstance(words, dict):
        model["vocab"] = {names.get(word, word): at for word, at in words.items()}
    else:
        model["vocab"] = [[names.get(word, word), score] for word, score in words]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if names.keys().isdisjoint(_made(pair))]


def _made(pair: str | list[str]) -> tuple[str, str, str]:
    """Both parts of a merge, and what they make."""
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return left, right, left + right


def _give_way() -> None:
    """Lower this thread's priority."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
