"""Drafts that were made ahead, each for one place of one request.

Pure.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Proposals:
    """Last proposal for each request; it holds for one position, and is gone with the request."""

    _held: dict[int, tuple[int, tuple[int, ...]]] = field(init=False, default_factory=dict)
    """Position of the first, and the token ids."""

    def offer(self, request_id: int, position: int, ids: tuple[int, ...]) -> None:
        """Keep guesses of the tokens from a position on, in place of those before."""
        self._held[request_id] = position, ids

    def take(self, request_id: int, position: int, most: int) -> tuple[int, ...]:
        """Guesses for a position, each taken once; those for another one are void."""
        held, ids = self._held.pop(request_id, (position, ()))
        return ids[: max(0, most)] if held == position else ()

    def forget(self, request_id: int) -> None:
        """Drop what is held for a request; one that is unknown is fine."""
        self._held.pop(request_id, None)
