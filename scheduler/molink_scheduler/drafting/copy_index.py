"""Index of a request's text, by which an answer that copies is guessed.

Answers repeat what their prompt holds: a file with one name changed, a quotation, a list. Where the
last tokens stand in the text once before, those behind that place are likely to follow. Each run of
eight tokens is found by a table of its last place; a match that goes on is kept, for it is longer
than any that begins anew. Shorter runs are found everywhere in ordinary text and were never right
(docs/benchmarks/speculation.md). A suffix automaton would find the longest match also where a copy
begins, for five times the memory.

Pure. A token is learned in microseconds; 100,000 of them take 15 MB.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

MATCH_TOKENS = 8
"""Tokens that must match before anything is copied: ordinary text, of which nothing is copied, has
hardly any such runs."""

END = -1
"""Mark behind a predicted text, which no token is: nothing is copied across it."""


def predicted(tokens: Iterable[int]) -> list[int]:
    """Text that the answer may copy, as it is learned before anything else."""
    return [*tokens, END]


@dataclass(slots=True)
class CopyIndex:
    """Text of one request, and where each run of tokens was seen last."""

    _text: "array[int]" = field(init=False, default_factory=lambda: array("q"))
    _places: dict[bytes, int] = field(init=False, default_factory=dict)
    """Place behind the last occurrence of each run of `MATCH_TOKENS`."""
    _next: int = field(init=False, default=-1)
    """Place of the token that a copy goes on with; -1: nothing matches."""

    def learn(self, tokens: Iterable[int]) -> None:
        """Take in the tokens that follow."""
        text, places, place = self._text, self._places, self._next
        for token in tokens:
            goes_on = place >= 0 and text[place] == token
            text.append(token)
            run = text[-MATCH_TOKENS:].tobytes()
            place = place + 1 if goes_on else places.get(run, -1)
            places[run] = len(text)
        self._next = place

    def propose(self, most: int) -> tuple[int, ...]:
        """What follows, if the answer goes on to copy; nothing where no match is long enough. A
        text that has begun to repeat itself is guessed to go on so."""
        if self._next < 0 or most < 1:
            return ()
        copied = self._text[self._next : self._next + most]
        if END in copied:
            return tuple(copied[: copied.index(END)])
        while len(copied) < most:
            copied += copied[: most - len(copied)]
        return tuple(copied)
