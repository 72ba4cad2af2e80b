"""Rows that a stage has sent of consecutive tokens.

Pure: rows are bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple


class SentRows(NamedTuple):
    """Rows of consecutive tokens [start, end) of one request."""

    start: int
    end: int
    rows: bytes
    """All rows end to end."""
    token_ids: tuple[int, ...] = ()
    """Token ids of the rows, where the model's layers read them."""

    def between(self, start: int, end: int) -> "SentRows":
        """Rows of tokens from `start` on and before `end`."""
        if start <= self.start and end >= self.end:
            return self
        start, end = max(start, self.start), min(end, self.end)
        first, last = start - self.start, end - self.start
        row_bytes = len(self.rows) // (self.end - self.start)
        rows = self.rows[first * row_bytes : last * row_bytes]
        return SentRows(start, end, rows, self.token_ids[first:last])

    def moved(self, start: int) -> "SentRows":
        """The same rows, of tokens from `start` on."""
        return self._replace(start=start, end=start + self.end - self.start)


def joined_rows(pieces: Sequence[SentRows]) -> SentRows:
    """Rows of pieces that follow one another."""
    token_ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
    rows = b"".join(piece.rows for piece in pieces)
    return SentRows(pieces[0].start, pieces[-1].end, rows, token_ids)
