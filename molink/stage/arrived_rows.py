"""Rows of messages that have arrived, under the numbers by which the core names them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink.wire.elements import Elements
from molink_scheduler.events import Piece


@dataclass(slots=True)
class ArrivedRows:
    """Rows that were not computed yet."""

    next_number: int = field(init=False, default=1)
    """Number of the message that arrives next."""
    _rows: dict[int, Elements] = field(init=False, default_factory=dict)
    """Rows [T, D] of each message."""
    _token_ids: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)
    """Token ids of the same rows; empty where layers do not read them."""

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, rows_TD: Elements, token_ids: tuple[int, ...]) -> None:
        """Keep the rows of the message that has the next number."""
        self._rows[self.next_number] = rows_TD
        self._token_ids[self.next_number] = token_ids
        self.next_number += 1

    def token_ids(self, pieces: Iterable[Piece]) -> list[int]:
        """Token ids of the pieces laid end to end."""
        ids = (self._token_ids[message][start:end] for message, start, end in pieces)
        return [token for piece in ids for token in piece]

    def take(self, pieces: Iterable[Piece]) -> list[Elements]:
        """Rows [T, D] of the pieces, which are then forgotten."""
        rows: list[Elements] = []
        for message, start, end in pieces:
            message_TD = self._rows[message]
            if end == len(message_TD):
                del self._rows[message], self._token_ids[message]
            rows.append(message_TD[start:end])
        return rows

    def clear(self) -> None:
        """Forget all rows; numbers go on."""
        self._rows.clear()
        self._token_ids.clear()
