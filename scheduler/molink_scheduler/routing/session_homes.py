"""Rings that sessions are at home on: a session's next request had better go where the last one
went.

A ring is mostly found again by what it has cached (`prefix_mirror`). But a session's first turns
share little but a system prompt that all rings have, and several of a session's requests may begin
apart from each other. Who names the session (`prompt_cache_key`) says that they belong together.

Pure.
"""

from dataclasses import dataclass, field

SESSIONS_MAX = 4096
"""Sessions whose rings are known; of more the one that asked longest ago is forgotten."""


@dataclass(slots=True)
class SessionHomes:
    """The ring that last took a request of each session."""

    _rings: dict[str, int] = field(default_factory=dict)
    """Number of the ring, by session, the one that asked longest ago first."""

    def of(self, session: str) -> int | None:
        """Number of the session's ring; None: it has none, or there is no session."""
        return self._rings.get(session)

    def went(self, session: str, ring: int) -> None:
        """A session's request goes to a ring; an empty session is none."""
        if session:
            self._rings.pop(session, None)
            self._rings[session] = ring
        if len(self._rings) > SESSIONS_MAX:
            del self._rings[next(iter(self._rings))]
