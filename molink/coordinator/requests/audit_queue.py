"""Requests that are chosen for an audit, from their arrival until the auditor takes them."""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from molink.serving.timeline import RequestTimeline
from molink.tasks import Signal

AUDIT_TOKENS_MAX = 1024
"""First tokens of a request that are audited; shorter requests show lies about later ones."""

AUDIT_TOKENS_MIN = 4
"""Fewer say too little."""

TRIES_MAX = 2
"""Most audits of a request, while none finishes: a ring may have ended, or lost a stage."""

WAITING_MAX = 16
"""Requests that wait, at most: rings that have no time for audits make fewer than asked for."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """Request that has been answered and is to be audited."""

    tokens: tuple[int, ...]
    """Tokens of prompt and answer."""
    ring: int
    """Number of the ring that has ended the answer."""
    cache_salt: str
    """Salt of the request: computed again, it is cached for the same users, and nobody else."""
    timeline: RequestTimeline
    tries: int = 1
    """Audits of it, this one among them."""


@dataclass(slots=True)
class AuditQueue:
    """Bounded queue of chosen requests."""

    share: float = 0.0
    """Part of all requests that is chosen; 0: none is."""
    random: Random = field(default_factory=Random)
    is_alone: bool = False
    """Whether the latest request was not audited because only one ring serves."""
    _waiting: deque[AnsweredRequest] = field(default_factory=deque)
    _changed: Signal = field(default_factory=Signal)

    def choose(self, timeline: RequestTimeline, rings: int) -> None:
        """Mark a request that has come, or do not: while fewer than two rings serve, nobody could
        compute it again."""
        if self.random.random() >= self.share or not rings:
            return
        self.is_alone = rings < 2
        if not self.is_alone and len(self._waiting) < WAITING_MAX:
            timeline.audited = "pending"

    def answered(
        self, timeline: RequestTimeline, tokens: tuple[int, ...], ring: int, cache_salt: str
    ) -> None:
        """Take in a request that has been answered, if it was chosen."""
        if timeline.audited != "pending":
            return
        if len(tokens) < AUDIT_TOKENS_MIN or len(self._waiting) >= WAITING_MAX:
            timeline.audited = "unfinished"
            return
        audited = tokens[:AUDIT_TOKENS_MAX]
        self._waiting.append(AnsweredRequest(audited, ring, cache_salt, timeline))
        self._changed.send()

    def again(self, answered: AnsweredRequest) -> bool:
        """Have a request whose audit did not finish audited again; False: it was before."""
        if answered.tries >= TRIES_MAX:
            return False
        self._waiting.append(replace(answered, tries=answered.tries + 1))
        return True

    def closed(self, timeline: RequestTimeline) -> None:
        """A request has ended, in whatever way: half an answer is not audited."""
        if timeline.audited == "pending" and timeline.finish_reason not in ("stop", "length"):
            timeline.audited = "unfinished"

    async def next(self) -> AnsweredRequest:
        """The request that has waited longest, as soon as there is one."""
        while not self._waiting:
            await self._changed.wait()
        return self._waiting.popleft()
