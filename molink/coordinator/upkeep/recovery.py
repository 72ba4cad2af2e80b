"""Failover of a ring that has lost stages: survivors stay, the hole is filled, the ring goes on.

What is lost goes on on a standby that holds its layers, else it is loaded again on its own node if
that is still there, else on another one, else beside what a neighbour holds. Then all stages join
the ring's next epoch, in which survivors keep their process, weights and KV
(`molink_scheduler.resume`). When another stage is lost meanwhile, the same begins again. A ring
that cannot go on in time ends, and its requests go to the next one.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from molink.control.messages.assignment import GoOn
from molink.control.messages.payloads import AssignedWork
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.ring import AgentStage, Ring, tokens_asked
from molink.coordinator.upkeep.neighbours import has_grown, in_places, without_holes
from molink.coordinator.upkeep.ring_building import RingEndpoint, ring_snapshots, routes_of
from molink.errors import StageError
from molink.tasks import background_tasks, gathered
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.resume import Positions, Resume, common_runs, held_behind

RECOVER_WITHIN_S = 60.0
"""A small download and the import of torch on a busy PC; after that users are better off with a
ring that is dealt anew, which loads too."""

LOST_AGAIN_S, LOST_AGAIN_MAX_S = 60.0, 3600.0
"""A node that loses its stage again within this time has a reason: another one takes its place, or
the ring is planned anew. Twice as long after each further loss."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Ring whose stages have all joined its next epoch."""

    ring: Ring
    listed: frozenset[int]
    """Requests of which survivors were told to keep KV..."""
    missing: frozenset[int]
    """...and those among them with which some stage cannot go on."""
    behind_tokens: int
    """Rows that fresh stages lack of them, all told."""
    reason: str
    """Why there is another epoch, a sentence."""
    cached: Positions | None = None
    """Runs of cached blocks that all survivors hold; None: none are asked for any."""


class Fillers(Protocol):
    """Finder of nodes that can take a lost one's place."""

    def standing_by(self, lost: AgentStage, kv_tokens: int, taken: Set[str]) -> AgentStage | None:
        """On a standby that holds the layers, and is not `taken` already."""

    def with_room(
        self, lost: AgentStage, kv_tokens: int, taken: Set[str], within_s: float
    ) -> AgentStage | None:
        """On a free node that can have the layers in time."""

    def beside(
        self, stage: AgentStage, layers: tuple[int, int], kv_tokens: int, within_s: float
    ) -> AssignedWork | None:
        """Work of a stage that takes these layers too; None: its node has no room, or no time."""


@dataclass(slots=True)
class Recovery:
    """Way of one ring into its next epoch, and the next."""

    endpoint: RingEndpoint
    next_epoch: Callable[[], int]
    fillers: Fillers
    clock: Callable[[], float] = time.monotonic
    _fresh: set[int] = field(default_factory=set)
    """Places of stages that hold nothing of the ring's requests."""
    _began_at: float | None = None
    """When the first stage was lost; None: the ring serves."""
    _loaded_at: float = 0.0
    """When all that was lost was loaded again."""
    _times_lost: Counter[str] = field(default_factory=Counter)
    """How often each node has lost its stage..."""
    _held_back_until: dict[str, float] = field(default_factory=dict)
    """...and until when it must not load it again."""

    @property
    def left_s(self) -> float:
        """For how long it may still take."""
        began_at = self.clock() if self._began_at is None else self._began_at
        return max(0.0, began_at + RECOVER_WITHIN_S - self.clock())

    def begin(self, ring: Ring, *, taken_over: bool = False) -> Ring | None:
        """The ring on its way into the next epoch, with nothing loaded in the places of what is
        lost, or with fewer places; None: it cannot go on without that, or not in time. One that is
        `taken_over` may have lost nothing but its coordinator."""
        lost = _lost(ring.stages)
        replaced = lost | self._fresh
        fewest, most = int(not taken_over), len(ring.stages) - 1
        if not self.left_s or not fewest <= len(replaced) <= most:
            return None
        fillings = self._fillings(ring, sorted(lost))
        stages = [fillings.get(place, stage) for place, stage in enumerate(ring.stages)]
        beside = partial(self._beside, tokens_asked(ring.terms.ring.kv_tokens_capacity))
        going_on = without_holes(stages, lost - fillings.keys(), replaced, beside)
        if going_on is None:
            return None
        now, epoch = self.clock(), self.next_epoch()
        self._began_at = now if self._began_at is None else self._began_at
        for place in lost:
            self._hold_back(ring.stages[place].node.node_id)
        left, self._fresh = going_on
        return in_places(ring, [stage.in_epoch(epoch) for stage in left])

    def has_standby(self, ring: Ring, stage: AgentStage) -> bool:
        """Whether another node could take a stage's place at once."""
        tokens = tokens_asked(ring.terms.ring.kv_tokens_capacity)
        return self.fillers.standing_by(stage, tokens, set()) is not None

    def _beside(
        self, kv_tokens: int, stage: AgentStage, layers: tuple[int, int]
    ) -> AssignedWork | None:
        return self.fillers.beside(stage, layers, kv_tokens, self.left_s)

    def _fillings(self, ring: Ring, lost: Sequence[int]) -> dict[int, AgentStage]:
        """What takes the place of each stage that is lost, where something can."""
        found: dict[int, AgentStage] = {}
        for place in lost:
            taken = {stage.node.node_id for stage in found.values()}
            filling = self._filling(ring, ring.stages[place], taken)
            if filling is not None:
                found[place] = filling
        return found

    def _filling(self, ring: Ring, lost: AgentStage, taken: Set[str]) -> AgentStage | None:
        """A standby that has the layers, else its own node, else another one that is free."""
        tokens = tokens_asked(ring.terms.ring.kv_tokens_capacity)
        standby = self.fillers.standing_by(lost, tokens, taken)
        if standby is not None:
            return standby
        now, until = self.clock(), self._held_back_until
        held_back = {node_id for node_id in until if now < until[node_id]}
        if lost.may_load_again and lost.node.node_id not in held_back:
            return lost.replaced(tokens)
        return self.fillers.with_room(lost, tokens, taken | held_back, self.left_s)

    def _hold_back(self, node_id: str) -> None:
        again_s = LOST_AGAIN_S * 2.0 ** min(self._times_lost[node_id], 30)
        self._times_lost[node_id] += 1
        self._held_back_until[node_id] = self.clock() + min(LOST_AGAIN_MAX_S, again_s)

    async def run(self, ring: Ring, client: RingClient, reason: str) -> Resumption:
        """Load what is lost and have all stages join. Raises StageError or UserError when one
        cannot."""
        stages, terms = ring.stages, ring.terms
        await self._load(stages)
        _check_room(stages, terms.ring)
        self._loaded_at = self.clock()
        loaded = [stage.loaded for stage in stages if stage.loaded is not None]
        tiers = CacheTiers.of_ring([stage.tiers or CacheTiers() for stage in loaded])
        ring_terms = replace(terms.ring, tiers=tiers, state_snapshots=ring_snapshots(loaded))
        terms = replace(terms, ring=ring_terms)
        routes = await self.endpoint.reroute(routes_of(stages, loaded, terms.coordinator))
        listed = client.to_resume()
        shadowed = {place: stages[place].shadowed for place in self._fresh}
        held = held_behind(dict(listed), shadowed, self._fresh)
        stays = self._chains_stay(stages, terms.ring)
        facts = await gathered(
            stage.enter(
                GoOn(
                    work=stage.work,
                    terms=terms.ring,
                    next_link=to_next,
                    coordinator_link=routes.sampled if stage is stages[-1] else None,
                    resume=replace(
                        self._resume(place, len(stages), listed, held), chains_stay=stays
                    ),
                )
            )
            for place, (stage, to_next) in enumerate(zip(stages, routes.next_of, strict=True))
        )
        return Resumption(
            Ring(stages, terms, routes.requests),
            frozenset(request_id for request_id, _ in listed),
            frozenset(request_id for fact in facts for request_id in fact.missing),
            sum(_tokens(listed) - _tokens(one) for one in held.values()),
            reason,
            common_runs(one.cached for place, one in enumerate(facts) if place not in self._fresh)
            if stays
            else None,
        )

    async def _load(self, stages: Sequence[AgentStage]) -> None:
        """Have survivors hold what they have, and load the others; ends when one more is lost."""
        self.endpoint.admit(stages)
        await gathered(stage.admit() for stage in stages)
        survivors = [
            stage
            for place, stage in enumerate(stages)
            if (place not in self._fresh or has_grown(stage)) and stage.loaded is not None
        ]
        await gathered(stage.hold() for stage in survivors)
        loading = [stage for stage in stages if stage.loaded is None]
        async with background_tasks() as tasks:
            for stage in stages:
                tasks.create_task(_until_lost(stage))
            await gathered(stage.load(lambda fraction: None) for stage in loading)

    def _chains_stay(self, stages: Sequence[AgentStage], ring: RingTerms) -> bool:
        """Whether survivors may keep what is cached: the head knows what that is, and a stage that
        has taken another one's layers, or has tiers, is fed in ways that know no cached blocks."""
        has_tiers = ring.tiers is not None and ring.tiers.has_room
        can = ring.prefix_cache and ring.state_slots is None and not has_tiers
        return can and 0 not in self._fresh and not any(map(has_grown, stages))

    def succeeded(self) -> tuple[float, float]:
        """The ring serves again; how many seconds after its loss, and how many of them it took to
        load."""
        assert self._began_at is not None, "it had lost a stage"
        elapsed_s, loading_s = self.clock() - self._began_at, self._loaded_at - self._began_at
        self._began_at, self._fresh = None, set()
        return elapsed_s, loading_s

    def _resume(
        self, place: int, count: int, listed: Positions, held: Mapping[int, Positions]
    ) -> Resume:
        """The tail's next stage is the head, to which it sends no rows."""
        next_fresh = place + 1 < count and place + 1 in self._fresh
        fresh = place if place in self._fresh else place + 1
        is_told = place in self._fresh or next_fresh
        return Resume(listed, place in self._fresh, next_fresh, held[fresh] if is_told else ())


async def _until_lost(stage: AgentStage) -> None:
    """Raises StageError then: who is told to join beside it would wait for it, and fail."""
    while stage.loaded is None or not stage.is_lost:
        await stage.node.changed.wait()
    raise StageError(f"While others loaded, {stage.name} was lost too.")


def _tokens(positions: Positions) -> int:
    return sum(tokens for _, tokens in positions)


def _lost(stages: Sequence[AgentStage]) -> set[int]:
    return {place for place, stage in enumerate(stages) if stage.is_lost}


def _check_room(stages: Sequence[AgentStage], ring: RingTerms) -> None:
    """Raises StageError when one has less room than the ring counts with."""
    for stage in stages:
        loaded = stage.loaded
        assert loaded is not None, "all have loaded"
        has_slots = (loaded.state_slots or 0) >= (ring.state_slots or 0)
        if loaded.state_slots is not None and not has_slots:
            raise stage.fail(f"{stage.name} has room for the states of too few requests.")
        if loaded.kv_tokens_capacity < ring.kv_tokens_capacity:
            raise stage.fail(f"{stage.name} has room for too few tokens of its ring.")
