"""Progress of a request on one ring: the pieces of its prompt and the rounds of its answer.

Both stay small however long the request is. Neighbouring pieces are told as one once there are
many. Gaps between tokens are counted in classes, each a tenth wider than the one before, so that
their quantiles are true to five per cent; to keep every gap was rejected: thousands of long answers
would take hundreds of megabytes.

Pure: times are arguments.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

PIECES_MAX = 32
"""Most pieces of one prompt on one ring, an even number: more than a terminal has room to show, and
a kilobyte of what `GET /cluster/requests` answers."""

PAUSES_MAX = 8
"""Most pauses of one answer on one ring that are kept: the longest are of interest."""

PAUSE_S_MIN = 0.5
"""Seconds below which a gap is no pause to whoever reads the answer."""

PAUSE_TIMES = 4.0
"""Usual rounds of this ring below which a gap is no pause either."""

GAP_S_MIN = 1e-4
"""Upper end of the first class of gaps: no round over a network is quicker."""

GAP_CLASSES_MAX = 250
"""The last one holds what is longer than a month."""

CLASS_WIDTH = math.log(1.1)


class PromptPiece(NamedTuple):
    """Piece of a prompt, as the ring's head sent it on its way."""

    start: int
    """Index of the piece's first token."""
    end: int
    """Index behind the piece's last token."""
    at: float
    """When the head began to compute it."""


@dataclass(slots=True)
class PromptPieces:
    """Bounded list of the pieces of one prompt, in the order in which they went."""

    pieces: list[PromptPiece] = field(default_factory=list)

    def add(self, piece: PromptPiece) -> None:
        """Note a piece; a piece that went no later than the last is known already."""
        if self.pieces and piece.at <= self.pieces[-1].at:
            return
        if len(self.pieces) >= PIECES_MAX:
            self.pieces = [
                PromptPiece(one.start, max(one.end, two.end), one.at)
                for one, two in zip(self.pieces[::2], self.pieces[1::2], strict=True)
            ]
        self.pieces.append(piece)


class Pause(NamedTuple):
    """Gap between two tokens that is far longer than this ring's rounds."""

    at: float
    """When it began: with the token before."""
    length_s: float
    tokens: int
    """Tokens that had come on this ring before the pause."""


@dataclass(slots=True)
class Rounds:
    """Gaps between the tokens of one sequence on one ring, counted by their length."""

    count: int = 0
    longest_s: float = 0.0
    pauses: list[Pause] = field(default_factory=list)
    """The longest ones, in the order in which they came."""
    _classes: dict[int, int] = field(default_factory=dict)

    def add(self, before_at: float, now: float, tokens: int) -> None:
        """Note the gap from one token to the next, before which so many had come. Tokens that came
        together are of one round."""
        gap_s = now - before_at
        if gap_s <= 0:
            return
        if self._is_pause(gap_s):
            self._note_pause(Pause(before_at, gap_s, tokens))
        self.count += 1
        self.longest_s = max(self.longest_s, gap_s)
        found = _class_of(gap_s)
        self._classes[found] = self._classes.get(found, 0) + 1

    def with_all(self, others: Iterable["Rounds"]) -> "Rounds":
        """Gaps of this one and of others together, without their pauses."""
        found = Rounds(self.count, self.longest_s, _classes=dict(self._classes))
        for one in others:
            found.count += one.count
            found.longest_s = max(found.longest_s, one.longest_s)
            for number, count in one._classes.items():
                found._classes[number] = found._classes.get(number, 0) + count
        return found

    def quantile_s(self, part: float) -> float | None:
        """Length below which this part of the gaps lies, to five per cent; None of none."""
        left = part * self.count
        for found, count in sorted(self._classes.items()):
            left -= count
            if left < 0:
                return min(self.longest_s, GAP_S_MIN * math.exp(CLASS_WIDTH * (found - 0.5)))
        return self.longest_s if self.count else None

    def _is_pause(self, gap_s: float) -> bool:
        if gap_s < PAUSE_S_MIN:
            return False
        usual_s = self.quantile_s(0.5)
        return usual_s is not None and gap_s >= PAUSE_TIMES * usual_s

    def _note_pause(self, pause: Pause) -> None:
        self.pauses.append(pause)
        if len(self.pauses) > PAUSES_MAX:
            self.pauses.remove(min(self.pauses, key=lambda one: one.length_s))


def _class_of(gap_s: float) -> int:
    if gap_s <= GAP_S_MIN:
        return 0
    return min(GAP_CLASSES_MAX, math.ceil(math.log(gap_s / GAP_S_MIN) / CLASS_WIDTH))
