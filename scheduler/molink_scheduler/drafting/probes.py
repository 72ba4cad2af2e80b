"""Guesses that no span takes along: they are compared with the tokens that come.

Where drafts do not pay, one is made now and then, or a text that can be guessed again would never
be found out. Nobody waits for it and it is no row of the ring: its request departs at once, and the
token that comes back says whether the guess was right.

Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from molink_scheduler.drafting.acceptance import DraftKind


@dataclass(slots=True)
class Probes:
    """Guesses of all requests whose tokens have not come yet."""

    _guesses: dict[int, dict[DraftKind, tuple[int, int]]] = field(init=False, default_factory=dict)
    """Position and token, by request and kind."""

    def guess(self, request_id: int, kind: DraftKind, position: int, token_id: int) -> None:
        """Take a guess of one token; the one before it of the same kind is of no use any more."""
        self._guesses.setdefault(request_id, {})[kind] = position, token_id

    def compared(self, request_id: int, known: Sequence[int]) -> Iterator[tuple[DraftKind, bool]]:
        """Guesses whose tokens are `known` now, and whether they were right; each is told once."""
        guesses = self._guesses.get(request_id, {})
        for kind, (position, token_id) in list(guesses.items()):
            if position < len(known):
                del guesses[kind]
                yield kind, known[position] == token_id

    def forget(self, request_id: int) -> None:
        """Drop what was guessed of a request; one that is unknown is fine."""
        self._guesses.pop(request_id, None)
