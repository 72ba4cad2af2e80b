"""Verification of drafts: how many rows of a span count, once all of them are drawn.

A row stands behind the drafts before it, so its token is the sequence's if those are what was drawn
in front of it. The first draft that is not ends the run, and the token that was drawn in its place
is the sequence's next one: a span gives one token at least, and the same ones with any drafts.

Pure.
"""

from collections.abc import Sequence


def rows_that_count(drafts: Sequence[int], words: Sequence[int | None]) -> int:
    """How many of a span's rows count from the first on. `words`: what each row drew, one more than
    there are drafts; None: nothing, as its grammar's mask was not there."""
    for row, word in enumerate(words):
        if word is None:
            return row
        if row == len(drafts) or word != drafts[row]:
            return row + 1
    raise ValueError("a row is drawn behind each draft, and one before them")
