"""Recovery of a ring that has lost stages: survivors stay, the hole is filled, the ring goes on.

What is lost is loaded again on its own node, if that is still there; then all stages join the
ring's next epoch, in which survivors keep their process, weights and KV
(`molink_scheduler.resume`). When another stage is lost meanwhile, the same begins again. A ring
that cannot go on in time ends, and its requests go to the next one.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from molink.coordinator.members.ring import AgentStage, Ring
from molink.coordinator.requests.ring_client import RingClient
from molink.coordinator.rings.ring_building import RingEndpoint, routes_of
from molink.tasks import gathered
from molink_scheduler.resume import Resume

__all__ = ["RECOVER_WITHIN_S", "Recovery", "Resumption"]

RECOVER_WITHIN_S = 25.0
"""Survivors give the link to a lost neighbour up after 30 s, and end."""

LOST_AGAIN_S, LOST_AGAIN_MAX_S = 60.0, 3600.0
"""A stage that is lost again within this time has a reason, and its ring is planned anew; twice as
long after each further loss of it."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Ring whose stages have all joined its next epoch."""

    ring: Ring
    listed: frozenset[int]
    """Requests of which survivors were told to keep KV..."""
    missing: frozenset[int]
    """...and those among them with which some stage cannot go on."""
    reason: str
    """Why there is another epoch, a sentence."""


@dataclass(slots=True)
class Recovery:
    """Way of one ring into its next epoch, and the next."""

    endpoint: RingEndpoint
    next_epoch: Callable[[], int]
    clock: Callable[[], float] = time.monotonic
    _fresh: set[int] = field(default_factory=set)
    """Places of stages that hold nothing of the ring's requests."""
    _began_at: float | None = None
    """When the first stage was lost; None: the ring serves."""
    _loaded_at: float = 0.0
    """When all that was lost was loaded again."""
    _times_lost: Counter[int] = field(default_factory=Counter)
    """How often each place was lost..."""
    _held_back_until: dict[int, float] = field(default_factory=dict)
    """...and until when it must not be lost again."""

    def is_possible(self, ring: Ring) -> bool:
        """Whether the ring can go on without the stages that it has lost, in time."""
        now = self.clock()
        lost = _lost(ring.stages)
        began_at = now if self._began_at is None else self._began_at
        again = [place for place in lost if now < self._held_back_until.get(place, -inf)]
        return (
            bool(lost | self._fresh)
            and len(lost | self._fresh) < len(ring.stages)
            and not again
            and all(ring.stages[place].may_load_again for place in lost)
            and now - began_at < RECOVER_WITHIN_S
        )

    @property
    def left_s(self) -> float:
        """For how long it may still take."""
        began_at = self.clock() if self._began_at is None else self._began_at
        return max(0.0, began_at + RECOVER_WITHIN_S - self.clock())

    def begin(self, ring: Ring) -> Ring:
        """The ring on its way into the next epoch, with nothing in the places of what is lost."""
        now, epoch = self.clock(), self.next_epoch()
        self._began_at = now if self._began_at is None else self._began_at
        lost = _lost(ring.stages)
        for place in lost:
            self._hold_back(place)
        self._fresh |= lost
        tokens = ring.terms.ring.kv_tokens_capacity
        stages = [stage.in_epoch(epoch) for stage in ring.stages]
        for place in lost:
            stages[place] = stages[place].replaced(tokens)
        return replace(ring, stages=stages)

    def _hold_back(self, place: int) -> None:
        again_s = LOST_AGAIN_S * 2.0 ** min(self._times_lost[place], 30)
        self._times_lost[place] += 1
        self._held_back_until[place] = self.clock() + min(LOST_AGAIN_MAX_S, again_s)

    async def run(self, ring: Ring, client: RingClient, reason: str) -> Resumption:
        """Load what is lost and have all stages join. Raises StageError or UserError when one
        cannot."""
        stages, terms = ring.stages, ring.terms
        await gathered(
            stage.load(lambda fraction: None) for stage in stages if stage.loaded is None
        )
        self._loaded_at = self.clock()
        loaded = [stage.loaded for stage in stages if stage.loaded is not None]
        routes = await self.endpoint.reroute(routes_of(stages, loaded, terms.coordinator))
        listed = client.to_resume()
        missing = await gathered(
            stage.join(
                terms.ring,
                to_next,
                routes.sampled if stage is stages[-1] else None,
                self._resume(place, len(stages), listed),
            )
            for place, (stage, to_next) in enumerate(zip(stages, routes.next_of, strict=True))
        )
        return Resumption(
            Ring(stages, terms, routes.requests),
            frozenset(request_id for request_id, _ in listed),
            frozenset(request_id for named in missing for request_id in named),
            reason,
        )

    def succeeded(self) -> tuple[float, float]:
        """The ring serves again; how many seconds after its loss, and how many of them it took to
        load."""
        assert self._began_at is not None, "it had lost a stage"
        elapsed_s, loading_s = self.clock() - self._began_at, self._loaded_at - self._began_at
        self._began_at, self._fresh = None, set()
        return elapsed_s, loading_s

    def _resume(self, place: int, count: int, listed: tuple[tuple[int, int], ...]) -> Resume:
        """The tail's next stage is the head, to which it sends no rows."""
        next_fresh = place + 1 < count and place + 1 in self._fresh
        return Resume(listed, place in self._fresh, next_fresh)


def _lost(stages: Sequence[AgentStage]) -> set[int]:
    return {place for place, stage in enumerate(stages) if stage.is_lost}
