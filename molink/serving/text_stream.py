"""Token ids to text, piece by piece, with stop strings.

A token may end in the middle of a character, and a piece of text may turn out to be the beginning
of a stop string; both are held back until it is clear. Between some marks (of thoughts and calls)
stop strings end nothing. The tail runs this to know when a sequence ends, the coordinator to know
what to show: the same class over the same tokens, so they agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.serving.model_card import ChatTokenizer
from molink_scheduler.request import SamplingParams

INCOMPLETE = "\ufffd"
"""Text that a tokenizer decodes half a character to, and a character itself."""

INCOMPLETE_BYTES = 3
"""Tokens that such a character has at most, without the space some put in front."""

CONTEXT_TOKENS, CONTEXT_TOKENS_MAX = 6, 18
"""Tokens decoded again in front of new ones, because a token's text depends on its neighbours. It
begins anew with the least when it holds the most: each beginning is decoded once more by itself."""

Quiet = tuple[str, str, bool]

WAITING_TOKENS_MAX = 16
"""Tokens without text of their own that are decoded again with the next one. No character has so
many; without a limit an answer of nothing but halves would cost more with each of its tokens."""


@dataclass(slots=True)
class TextStream:
    """The text of one sequence."""

    tokenizer: ChatTokenizer
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    min_tokens: int = 0
    """Stop strings within so many first tokens, context among them, end nothing."""
    quiet: tuple[Quiet, ...] = ()
    """Marks between which stop strings end nothing (`SamplingParams.quiet`)."""
    stopped_at: str | None = None
    """The stop string that has appeared."""
    _token_ids: list[int] = field(default_factory=list)
    _context_at: int = 0
    _shown_to: int = 0
    """Index behind the tokens whose text was decoded before."""
    _context: str = ""
    """Text of the tokens that are decoded again in front of new ones."""
    _held: str = ""
    _quiet_to: str | None = None
    """Mark that ends the quiet part in which the text is; None: it is in none."""
    _first: tuple[Quiet, ...] = ()
    """Parts that may begin where the text is, as nothing but white space stands before it."""

    def __post_init__(self) -> None:
        self._quiet_to = next((end for begin, end, _ in self.quiet if not begin), None)
        self._first = tuple(one for one in self.quiet if one[2])

    @classmethod
    def of(cls, tokenizer: ChatTokenizer, sampling: SamplingParams) -> "TextStream":
        """The text of a sequence that is sampled so."""
        skips = sampling.skip_special_tokens
        least = sampling.min_tokens + len(sampling.context)
        stream = cls(tokenizer, sampling.stop, skips, least, sampling.quiet)
        stream._begin_behind(sampling.context)
        return stream

    def _begin_behind(self, context: tuple[int, ...]) -> None:
        """Take tokens of which the text is known, but for half a character at their end."""
        self._token_ids, self._shown_to = list(context), len(context)
        text = self._decode(0) if context else ""
        if text.endswith(INCOMPLETE):
            whole = self.tokenizer.encode(INCOMPLETE, add_special_tokens=False)[-INCOMPLETE_BYTES:]
            text = text if self._token_ids[-len(whole) :] == whole else text.rstrip(INCOMPLETE)
        self._context = text

    def of_token(self, token_id: int, sampling: SamplingParams, *, is_last: bool) -> str:
        """Text that became final with one token; a stop token's own text is never shown."""
        text = "" if token_id in sampling.stop_token_ids else self.push((token_id,))
        return text + self.finish() if is_last else text

    def push(self, token_ids: tuple[int, ...]) -> str:
        """Text that became final with these tokens."""
        self._token_ids.extend(token_ids)
        return self._take(self._decode_new(keep_incomplete=False))

    def finish(self) -> str:
        """Text that was held back, at the end of the sequence."""
        text = self._take(self._decode_new(keep_incomplete=True), is_last=True)
        held, self._held = self._held, ""
        return text + held

    def _decode_new(self, *, keep_incomplete: bool) -> str:
        before, text = self._context, self._decode(self._context_at)
        is_incomplete = text.endswith(INCOMPLETE) and not keep_incomplete
        may_wait = len(self._token_ids) - self._shown_to <= WAITING_TOKENS_MAX
        if may_wait and (len(text) <= len(before) or is_incomplete):
            return ""
        self._shown_to, self._context = len(self._token_ids), text
        if self._shown_to - self._context_at > CONTEXT_TOKENS_MAX:
            self._context_at = self._shown_to - CONTEXT_TOKENS
            self._context = self._decode(self._context_at)
        return text[len(before) :]

    def _decode(self, start: int) -> str:
        return self.tokenizer.decode(
            self._token_ids[start:], skip_special_tokens=self.skip_special_tokens
        )

    def _take(self, new: str, *, is_last: bool = False) -> str:
        """Add new text behind what is held, and return what can no longer belong to a stop
        string."""
        if not self.stop:
            return new
        if self.stopped_at is not None:
            return ""
        taken, self._held = "", self._held + new
        while self._held and (piece := self._next(is_last=is_last)):
            taken += piece
        return taken

    def _next(self, *, is_last: bool) -> str:
        """The next piece of what is held that is certain; empty where none is."""
        if self._quiet_to is not None:
            return self._skip_to(self._quiet_to)
        text, parts = self._held, self._parts()
        begins = [begin for begin, _, _ in parts]
        marks = [(at, *part) for part in parts if (at := text.find(part[0])) >= 0]
        at, begin, end, is_first = min(marks, default=(len(text), "", "", False))
        sure = (
            at if begin or is_last else at - max((overlap(text, one) for one in begins), default=0)
        )
        stops = [(place, one) for one in self.stop if (place := text.find(one, 0, at)) >= 0]
        if stops and len(self._token_ids) > self.min_tokens:
            return self._stop(*min(stops), sure)
        if begin:
            self._quiet_to = end
            rest = self.quiet if is_first else ()  # What was thought, text or a call follows.
            self._first = tuple(one for one in rest if one[2] and not one[1])
            return self._release(at + len(begin))
        return self._release(at - max(overlap(text, one) for one in (*self.stop, *begins)))

    def _parts(self) -> list[Quiet]:
        """The quiet parts that may begin in what is held."""
        if rest := self._held.lstrip():
            self._first = tuple(
                one for one in self._first if rest.startswith(one[0]) or one[0].startswith(rest)
            )
        return [*self._first, *(one for one in self.quiet if one[0] and not one[2])]

    def _stop(self, place: int, stop: str, sure: int) -> str:
        """The text before a stop string, which may yet be part of a mark beyond `sure`."""
        if place + len(stop) > sure:
            return self._release(min(place, sure))
        text, self._held = self._release(place), ""
        self.stopped_at = stop
        return text

    def _skip_to(self, end: str) -> str:
        at, mark = first_of(self._held, (end,))
        self._quiet_to = None if mark else end
        return self._release(at + len(mark))

    def _release(self, count: int) -> str:
        """The first characters of what is held, which is held no longer."""
        text, self._held = self._held[:count], self._held[count:]
        return text


def first_of(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Place of the first of some marks in `text`, and that mark. Without one, the place where a
    mark may begin that more text completes, and an empty mark."""
    found = [(at, mark) for mark in marks if mark and (at := text.find(mark)) >= 0]
    return min(found, default=(len(text) - max(overlap(text, mark) for mark in marks), ""))


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
