"""One published model in many settings, each beside the library with the same weights.

MoLink answers first, in processes of its own; then the library computes: in 16 bits, to know what
that costs by itself, and last in fp32, the measure of all others. So one model at a time is in
memory.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from molink.errors import MolinkError
from tools.real import llama_cpp
from tools.real.library import Library, Vocabulary, save_plain, windows_of
from tools.real.prompts import CHATS, LONG_TOKENS, PROMPTS, long_text, loss_text
from tools.real.scores import Agreement, Comparison, Scores, agreement, divergences, scores_of
from tools.real.served import Form, Served, Setting, import_model, measured

__all__ = ["FULL", "GGUF", "LLAMA_CPP", "SHORT", "Extent", "Row", "compared_settings"]

GGUF = Form("GGUF")
PLAIN = Form("plain")
INT8 = Form("int8", ("--weights", "int8"))
INT4 = Form("int4", ("--weights", "int4"))

HOME_LINK = "100:30"

LLAMA_CPP = "llama.cpp"

DIVERGENCE_RATIO_MAX = 1.2
"""Of the library's own divergence in the same number format."""

DIVERGENCE_FLOOR = 1e-6
"""Nats; below it there is nothing but the last digits of fp32."""

LOSS_RATIO_MAX = 1.005
"""Of fp32's loss; int4 has a limit of its own for each model."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked."""

    settings: Sequence[Setting]
    prompt_names: Sequence[str] | None
    """Of the prompts; None asks all and the long one."""
    answer_tokens: int
    """In fp32, where all must be the library's."""
    rounded_tokens: int
    """In 16 bits and less, where some must differ."""
    loss_bytes: int

    def tokens(self, setting: Setting) -> int:
        """How many are asked of each prompt."""
        return self.answer_tokens if setting.dtype == "float32" else self.rounded_tokens


def _both(form: Form, dtype: str) -> list[Setting]:
    return [Setting(form, dtype, 1), Setting(form, dtype, 3, HOME_LINK)]


FULL = Extent(
    [
        *_both(GGUF, "float32"),
        *_both(GGUF, "bfloat16"),
        *_both(PLAIN, "float32"),
        *_both(PLAIN, "bfloat16"),
        *_both(INT8, "bfloat16"),
        *_both(INT4, "bfloat16"),
    ],
    None,
    200,
    40,
    20_000,
)

SHORT = Extent(
    [
        Setting(GGUF, "float32", 3, HOME_LINK),
        Setting(GGUF, "bfloat16", 1),
        Setting(PLAIN, "bfloat16", 3),
    ],
    ("English, a story", "Python", "Hindi", "emoji", "chat, one turn"),
    40,
    40,
    3_000,
)


@dataclass(slots=True)
class Row:
    """What one setting has come to."""

    setting: str
    dtype: str
    form: str
    failure: str | None = None
    """Why nothing was measured."""
    is_tried: bool = True
    """False: its turn did not come, and nothing is known."""
    other_tokens: list[str] = field(default_factory=list)
    """Prompts that the server cuts into other tokens than the library."""
    greedy: Agreement | None = None
    found: Comparison | None = None
    library: Comparison | None = None
    """The library in the same number format, with the same weights."""
    reference_loss: float = 0.0
    loss_ratio_max: float = LOSS_RATIO_MAX
    tokens_per_s: float = 0.0

    def misses(self) -> list[str]:
        """The targets that are missed, one clause each."""
        if not self.is_tried:
            return []
        if self.failure is not None:
            return [self.failure]
        if self.form == LLAMA_CPP:
            return []
        missed = [f"other tokens for {', '.join(self.other_tokens)}"] if self.other_tokens else []
        if self.dtype == "float32" and self.greedy is not None:
            other = self.greedy.total - self.greedy.equal - self.greedy.ties
            missed += [f"{other} of {self.greedy.total} greedy tokens differ"] if other else []
        return missed + list(self._score_misses())

    def _score_misses(self) -> Iterator[str]:
        if self.found is None or self.library is None:
            return
        ratio = self.found.divergence / max(self.library.divergence, DIVERGENCE_FLOOR)
        if not ratio <= DIVERGENCE_RATIO_MAX:
            yield f"divergence {ratio:.2f} x the library's"
        loss = self.found.loss / self.reference_loss
        if not loss <= self.loss_ratio_max:
            yield f"loss {100 * (loss - 1):.2f} % above fp32's"


def compared_settings(
    gguf: Path,
    work: Path,
    extent: Extent,
    say: Say,
    ends_s: float,
    int4_loss_ratio_max: float,
) -> list[Row]:
    """Serve a model in all settings, then compare each with the library.

    `work` is a folder for checkpoints made of the file, kept for the next run. A setting whose turn
    comes after `ends_s`, on the clock of `time.monotonic`, is not tried.
    """
    run = _Run(gguf, work, extent, say)
    for setting in extent.settings:
        if setting.form is INT4:
            run.rows[setting.name].loss_ratio_max = int4_loss_ratio_max
    for setting in extent.settings:
        if time.monotonic() < ends_s:
            run.serve(setting)
        else:
            run.rows[setting.name].is_tried = False
    if llama_cpp.is_built() and time.monotonic() < ends_s:
        run.ask_llama_cpp()
    run.compare()
    return list(run.rows.values())


class _Run:
    """The settings of one model, what they answered, and what becomes of it."""

    def __init__(self, gguf: Path, work: Path, extent: Extent, say: Say) -> None:
        self._gguf, self._work, self._extent, self._say = gguf, work, extent, say
        if not (work / "plain").exists():
            say("the library multiplies the weights out")
            save_plain(gguf, work / "plain")
        self._vocabulary = Vocabulary(work / "plain")
        self._windows = windows_of(self._vocabulary, loss_text(extent.loss_bytes))
        self._prompts, self._expected = self._asked()
        self._served: dict[str, Served] = {}
        """By name of a row, as are the rows."""
        self.rows = {one.name: Row(one.name, one.dtype, one.form.name) for one in extent.settings}

    def _asked(self) -> tuple[dict[str, Any], dict[str, list[int]]]:
        """What is asked by name, and the library's tokens of it."""
        asked: dict[str, Any] = dict(PROMPTS)
        expected = {name: self._vocabulary.encode(text) for name, text in PROMPTS.items()}
        for chat in CHATS:
            if (tokens := self._vocabulary.encode_chat(chat.messages)) is not None:
                asked[chat.name], expected[chat.name] = list(chat.messages), tokens
        long = self._vocabulary.encode(long_text())[:LONG_TOKENS]
        asked[f"{LONG_TOKENS} tokens"] = expected[f"{LONG_TOKENS} tokens"] = long
        wanted = self._extent.prompt_names
        if wanted is not None:
            asked = {name: one for name, one in asked.items() if name in wanted}
        return asked, expected

    def serve(self, setting: Setting) -> None:
        """Let MoLink answer in one setting."""
        row = self.rows[setting.name]
        try:
            folder, wanted = self._folder(setting.form), self._extent.tokens(setting)
            served = asyncio.run(measured(folder, setting, self._prompts, wanted, self._windows))
        except MolinkError as error:
            row.failure = str(error)
            self._say(f"{setting.name}: {error}")
            return
        self._take(row, served)

    def ask_llama_cpp(self) -> None:
        """Let llama.cpp answer from the same file; no target is set for it."""
        texts = {name: one for name, one in self._prompts.items() if isinstance(one, str)}
        row = self.rows[LLAMA_CPP] = Row(LLAMA_CPP, "", LLAMA_CPP)
        try:
            served = asyncio.run(llama_cpp.answers(self._gguf, texts, self._extent.rounded_tokens))
        except MolinkError as error:
            row.failure = str(error)
            return
        self._take(row, served)

    def _take(self, row: Row, served: Served) -> None:
        self._served[row.setting] = served
        row.tokens_per_s = served.tokens_per_s
        row.other_tokens = [
            name for name, tokens in served.prompts.items() if tokens != self._expected[name]
        ]
        self._say(f"{row.setting}: {served.tokens_per_s:.1f} tokens/s")

    def _folder(self, form: Form) -> Path:
        folder = self._work / form.name.lower()
        if form is not PLAIN:
            source = self._gguf if form is GGUF else self._work / "plain"
            import_model(source, folder, form)
        return folder

    def compare(self) -> None:
        """Let the library compute, and fill the rows."""
        if not self._served:
            return
        settings = [one for one in self._extent.settings if one.name in self._served]
        forms = {_twin(one).name: _twin(one) for one in settings if one.dtype != "float32"}
        own = {name: self._library_scores(form) for name, form in forms.items()}
        self._say("the library in fp32")
        library = Library(self._work / "plain", torch.float32)
        self._compare_windows(library, own)
        self._compare_greedy(library)

    def _library_scores(self, form: Form) -> list[Scores]:
        self._say(f"the library, {form.name} in 16 bits")
        rounded = self._folder(form) if form.words else None
        return list(_scores(Library(self._work / "plain", torch.bfloat16, rounded), self._windows))

    def _compare_windows(self, library: Library, own: dict[str, list[Scores]]) -> None:
        scored = {name: one.windows for name, one in self._served.items() if one.windows} | own
        sums: dict[str, list[torch.Tensor]] = {name: [] for name in scored}
        losses: list[torch.Tensor] = []
        for index, window in enumerate(self._windows):
            logits = library.logits(window, len(window))[:-1]
            losses.append(-scores_of(logits, torch.tensor(window[1:])).own_T)
            reference = logits.log_softmax(-1)
            for name, found in scored.items():
                sums[name].append(divergences(reference, found[index]))
        loss = float(torch.cat(losses).mean())
        for setting in self._extent.settings:
            if setting.name not in scored:
                continue
            row = self.rows[setting.name]
            row.reference_loss = loss
            row.found = _comparison(scored[setting.name], sums[setting.name])
            row.library = Comparison(loss, 0.0)
            if setting.dtype != "float32":
                twin = _twin(setting).name
                row.library = _comparison(own[twin], sums[twin])

    def _compare_greedy(self, library: Library) -> None:
        known: dict[tuple[int, ...], Agreement] = {}
        for row_name, served in self._served.items():
            found = list[Agreement]()
            for name, answer in served.answers.items():
                text = (*served.prompts[name], *answer)
                if text not in known:
                    logits = library.logits(text[:-1], len(answer))
                    known[text] = agreement(logits, answer)
                found.append(known[text])
            self.rows[row_name].greedy = _total(found)


def _twin(setting: Setting) -> Form:
    """What the library computes in 16 bits with the same weights."""
    return setting.form if setting.form.words else PLAIN


def _scores(library: Library, windows: Sequence[Sequence[int]]) -> Iterator[Scores]:
    for window in windows:
        logits = library.logits(window, len(window))[:-1]
        yield scores_of(logits, torch.tensor(window[1:]))


def _comparison(windows: Sequence[Scores], found: Sequence[torch.Tensor]) -> Comparison:
    loss = -torch.cat([one.own_T for one in windows]).mean()
    return Comparison(float(loss), float(torch.cat(list(found)).mean()))


def _total(found: Sequence[Agreement]) -> Agreement:
    return Agreement(
        sum(one.equal for one in found),
        sum(one.ties for one in found),
        sum(one.total for one in found),
        max(one.worst for one in found),
    )
