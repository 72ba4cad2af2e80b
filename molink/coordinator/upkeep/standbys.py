"""Standbys: free nodes that hold layers of rings which serve, and the nodes that fill a hole.

A ring that loses a stage goes on as soon as another node has its layers. So as many free nodes as
the operator wants load beforehand what a stage holds: first of nodes that come and go, then what is
largest. A node counts as free all the same: the planner may use it for something better. Where no
standby holds the layers, a free node is asked that has room for them and can fetch them in time.

Rejected: that a standby holds the layers of several stages. Where it has so much room a plan gives
it more of the model to begin with.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from molink.control.messages.payloads import AssignedWork
from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.cluster_plan import Planner
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.lent_room import own_tokens
from molink.coordinator.ring.ring import tokens_asked
from molink.coordinator.ring.stage_watch import StageFailure
from molink.coordinator.upkeep.assigner import Assigner
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor
from molink.coordinator.upkeep.shadows import Shadows
from molink.errors import ErrorGuard, MolinkError


@dataclass(slots=True)
class Standbys:
    """Keeper of the standbys, who also finds who fills a hole."""

    wanted: int
    """Count of standbys that the operator wants (`--standby`)."""
    may_shadow: bool
    """Whether they hold KV beside layers where they can; not as `--no-shadow`."""
    planner: Planner
    assigner: Assigner
    free: Callable[[], Sequence[Node]]
    """Nodes of no ring that may be used now."""
    failed: Callable[[StageFailure], object]
    """Takes the failure of a node that cannot load, or keep what it holds."""
    tasks: asyncio.TaskGroup
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Loading a standby"))
    _held: dict[str, AgentStage] = field(default_factory=dict)
    """What each standby holds, or loads, by the id of its node."""
    _shadows: Shadows = field(init=False)

    def __post_init__(self) -> None:
        self._shadows = Shadows(self.may_shadow, self.assigner.commands, self.tasks)

    @property
    def holders(self) -> Set[str]:
        """Ids of the standbys."""
        return self._held.keys()

    def update(self, rings: Sequence[RingSupervisor]) -> None:
        """Have as many free nodes as wanted hold what is most worth it, while rings serve."""
        serving = [ring for ring in rings if ring.state is RingState.SERVING]
        self._update_held(serving)
        self._shadows.update(serving, self._held)

    def _update_held(self, serving: Sequence[RingSupervisor]) -> None:
        for stage in [stage for stage in self._held.values() if not _stands_by(stage)]:
            self._forget(stage)
        places = list(_places(serving))
        if not places:
            return
        wanted = {_what(place, tokens) for place, tokens in places}
        for stage in [stage for stage in self._held.values() if _what(stage) not in wanted]:
            self._forget(stage)
        covered = {_what(stage) for stage in self._held.values()}
        for place, tokens in sorted(places, key=_worth, reverse=True):
            if len(self._held) >= self.wanted:
                return
            if _what(place, tokens) not in covered:
                self._cover(place, tokens)

    def covers(self, place: AgentStage, ring: Sequence[AgentStage]) -> Node | None:
        """The standby that holds the layers of a ring's stage, or loads them; None: there is
        none."""
        what = _what(place, _tokens(ring))
        return next((held.node for held in self._held.values() if _what(held) == what), None)

    def cover(
        self, place: AgentStage, ring: Sequence[AgentStage], fits: Callable[[Node], bool]
    ) -> bool:
        """Have a free node, which `fits`, load the layers of a ring's stage, rather one that stands
        by for nobody; False: there is none."""
        tokens = _tokens(ring)
        able = [one for one in self._able(place, tokens) if fits(one[0])]
        if not able:
            return False
        node, work = self._best(able)
        if node.node_id in self._held:
            self._forget(self._held[node.node_id])
        self._hold(place, node, work)
        return True

    def standing_by(self, lost: AgentStage, kv_tokens: int, taken: Set[str]) -> AgentStage | None:
        """The stage in a lost one's place on a standby that holds its layers, and is not `taken`
        already."""
        for node_id, held in self._held.items():
            is_ready = held.loaded is not None and _stands_by(held) and held.node.may_serve
            if is_ready and node_id not in taken and _what(held) == _what(lost, kv_tokens):
                filling = self.assigner.in_place_of(lost, held.node, held.work)
                return self._shadows.in_place(held, filling)
        return None

    def with_room(
        self, lost: AgentStage, kv_tokens: int, taken: Set[str], within_s: float
    ) -> AgentStage | None:
        """The stage in a lost one's place on a free node that can have its layers in time; rather
        on one that stands by for nobody."""
        able = [one for one in self._able(lost, kv_tokens) if one[0].node_id not in taken]
        in_time = ((node, self._in_time(node, work, within_s)) for node, work in able)
        quick = [(node, work) for node, work in in_time if work is not None]
        if not quick:
            return None
        return self.assigner.in_place_of(lost, *self._best(quick))

    def beside(
        self, stage: AgentStage, layers: tuple[int, int], kv_tokens: int, within_s: float
    ) -> AssignedWork | None:
        """Work of a stage that takes these layers beside its own; None: its node has no room for
        both, or cannot fetch them in time."""
        start, end = min(layers[0], stage.layers[0]), max(layers[1], stage.layers[1])
        both = replace(stage.work, layers=(start, end))
        room = self.planner.work_on(stage.node, both, kv_tokens)
        if room is None:
            return None
        added = self._in_time(stage.node, replace(room, layers=layers), within_s)
        return added and replace(both, kv_tokens=kv_tokens, drafter=added.drafter)

    def _in_time(self, node: Node, work: AssignedWork, within_s: float) -> AssignedWork | None:
        """Work that a node can fetch in time, if need be without the model that drafts; None: it
        cannot."""
        ways = work, self.planner.undrafted(work)
        return next((one for one in ways if self._fetch_s(node, one) < within_s), None)

    # -- loading beforehand ----------------------------------------------------------------------

    def _cover(self, place: AgentStage, tokens: int) -> None:
        able = [one for one in self._able(place, tokens) if one[0].node_id not in self._held]
        if able:
            self._hold(place, *self._best(able))

    def _hold(self, place: AgentStage, node: Node, work: AssignedWork) -> None:
        stage = self.assigner.standby(place, node, work)
        self._held[node.node_id] = stage
        self.tasks.create_task(self._load(stage, place.name))

    def _best(self, able: Sequence[tuple[Node, AssignedWork]]) -> tuple[Node, AssignedWork]:
        """Rather one that stands by for nobody, then the quickest to fetch."""
        return min(able, key=lambda one: (one[0].node_id in self._held, self._fetch_s(*one)))

    async def _load(self, stage: AgentStage, covers: str) -> None:
        with self.guard:
            try:
                await stage.load(lambda fraction: None)
            except MolinkError:
                if self._is_held(stage):
                    self._forget(stage)
            else:
                stage.node.covers = covers if self._is_held(stage) else ""

    def _is_held(self, stage: AgentStage) -> bool:
        return self._held.get(stage.node.node_id) is stage

    def _able(self, place: AgentStage, tokens: int) -> Iterator[tuple[Node, AssignedWork]]:
        """Free nodes with room for the layers of a stage, and the work as each of them does it."""
        for node in self.free():
            work = self.planner.work_on(node, place.work, tokens)
            if work is not None and node is not place.node:
                yield node, work

    def _fetch_s(self, node: Node, work: AssignedWork) -> float:
        return self.planner.fetch_s(node, work)

    def _forget(self, stage: AgentStage) -> None:
        """It is none any more; what it could not load, or keep, is held against it."""
        node = stage.node
        del self._held[node.node_id]
        node.covers, node.behind = "", None
        if stage.failure is not None:
            self.failed(stage.failure)
        elif _is_assigned(stage) and _has_failed(node):
            self.failed(StageFailure(node.node_id, f"{node.name}: its stage ended as it stood by."))
        elif _is_assigned(stage) and node.is_here:
            self.tasks.create_task(self._stand_down(stage))

    async def _stand_down(self, stage: AgentStage) -> None:
        with self.guard:
            await self.assigner.stand_by(stage.node, stage.epoch)


def _places(rings: Sequence[RingSupervisor]) -> Iterator[tuple[AgentStage, int]]:
    """All stages of rings, and the tokens that another one in their place is asked for."""
    for ring in rings:
        yield from ((stage, _tokens(ring.stages)) for stage in ring.stages)


def _tokens(ring: Sequence[AgentStage]) -> int:
    """What a node in the place of one of these is asked for."""
    return tokens_asked(min(own_tokens(one) for one in ring if one.loaded))


def _what(stage: AgentStage, kv_tokens: int | None = None) -> tuple[object, ...]:
    """What a stage holds, wherever: the same is as good in its place."""
    work = stage.work
    return work.layers, kv_tokens or work.kv_tokens, work.dtype, work.kv_dtype


def _worth(place: tuple[AgentStage, int]) -> tuple[int, int]:
    """How much it is worth to cover a stage, to be compared."""
    stage, _ = place
    return stage.node.changes, stage.loaded.weights_bytes if stage.loaded is not None else 0


def _stands_by(stage: AgentStage) -> bool:
    """Whether a standby still is one; while it loads, its loading fails if it is not."""
    is_there = stage.loaded is None or (_is_assigned(stage) and not stage.is_lost)
    return is_there and stage.node.wants == "serve"


def _is_assigned(stage: AgentStage) -> bool:
    """Whether its node was given nothing else since."""
    given = stage.node.assignment
    return given is not None and given.epoch == stage.epoch


def _has_failed(node: Node) -> bool:
    return node.current_fact is not None and node.current_fact.kind == "failed"
