"""Driver of the core's recovery in virtual time: a ring loses stages and goes on, or ends.

`molink_scheduler.recovery` decides. Here a stage that was lost is loaded again at a time that the
fault says, a shadow takes its place at once, or a neighbour takes its layers for good. A ring that
ends is followed by the next one, with empty KV, when all of its stages are there.

Faults name places of the ring as it began, the core those of the ring when the event happens; the
ring's `nodes` tell which is which. A fault of a node that is no part of it any more hits nobody.

A host that sleeps is a loss as soon as it was silent for too long, whether it wakes up or not.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Protocol

from molink_scheduler.recovery.events import (
    Event,
    FillerFound,
    Loss,
    NeighbourFound,
    PlaceLoaded,
    PlaceReady,
    RequestsListed,
    StageSilent,
    StagesLost,
    TimePassed,
    WentOn,
)
from molink_scheduler.recovery.instructions import (
    BeginEpoch,
    CountAsLost,
    EndRing,
    Extends,
    FindFiller,
    FindNeighbour,
    Instruction,
    JoinEpoch,
    ListRequests,
    LoadPlaces,
    NextMember,
    ResumeRequests,
)
from molink_scheduler.recovery.machine import SILENT_LOST_S, recover
from molink_scheduler.recovery.members import Filler, Member, RingRoom, Room
from molink_scheduler.recovery.state import RingRecovery
from molink_scheduler.resume import Positions, Resume
from molink_sim.clock import Clock
from molink_sim.ring.taken_layers import RingNode, nodes_of, stage_of
from molink_sim.scenario import FaultSpec, HostSuspended, NodeLoss, RingSpec, StageSpec


class RingHost(Protocol):
    """The ring that recovers, with its coordinator."""

    def lose(self, origin: int) -> None:
        """The process of a node's stage is gone, or nobody listens to it any more."""

    def suspend(self, origin: int, until: float) -> None:
        """A node sleeps until then."""

    def pause(self) -> None:
        """The coordinator takes nothing more of the ring until it goes on."""

    def listed(self) -> Positions:
        """Requests that could go on, and their first tokens of which all stages hold KV."""

    def join(
        self,
        nodes: tuple[RingNode, ...],
        resumes: tuple[Resume, ...],
        entered: Callable[[int, tuple[int, ...]], None],
    ) -> None:
        """Have the stages of these nodes enter the next epoch; `entered` is called with the place
        of each that has, and the requests with which it cannot go on."""

    def go_on(self, listed: Positions, missing: frozenset[int]) -> None:
        """Let requests flow again; those that are `listed` go on, but for those `missing`."""

    def end(self) -> None:
        """End the ring: nothing more comes of it."""

    def restart(self) -> None:
        """The next ring begins, with empty KV."""


@dataclass(slots=True)
class RingLosses:
    """Losses of one ring, and its way into the next epoch or the next ring."""

    clock: Clock
    host: RingHost
    spec: RingSpec
    survivors_stay: bool
    detect_s: float
    _state: RingRecovery = field(init=False)
    _nodes: tuple[RingNode, ...] = field(init=False)
    """Node in each place of the core's ring."""
    _missing: Counter[int] = field(init=False, default_factory=Counter)
    """Losses of each node after which its layers are not loaded again yet."""
    _unnoticed: list[tuple[float, int]] = field(init=False, default_factory=list)
    """Losses (time at which it is noticed, node) that nobody knows of yet."""
    _covered: dict[int, int] = field(init=False, default_factory=dict)
    """Tokens of each request that the shadow of a lost node lacks, by node."""
    _taken_at: dict[int, float] = field(init=False, default_factory=dict)
    """Time at which a neighbour has loaded the layers of a lost node, by node."""
    _loading: set[int] = field(init=False, default_factory=set)
    """Places of the core's ring whose layers are to be loaded."""
    _is_down: bool = field(init=False, default=False)
    _life: int = field(init=False, default=0)
    """Number of the ring: what is planned for one that has ended is void."""

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._state, self._nodes = _as_it_serves(self.spec), nodes_of(self.spec)

    def _place_of(self, origin: int) -> int | None:
        """The place of a node in the core's ring; None: it is no part of it any more."""
        places = (place for place, node in enumerate(self._nodes) if node.origin == origin)
        return next(places, None)

    def plan(self, fault: FaultSpec) -> None:
        """Plan a loss, or a host's sleep, on the clock."""
        match fault:
            case NodeLoss():
                self.clock.at(fault.at_s, self._lost, fault)
                self.clock.at(fault.until_s, self._loaded, fault.place)
            case HostSuspended():
                self.clock.at(fault.at_s, self._asleep, fault)

    # -- what happens ----------------------------------------------------------------------------

    def _lost(self, loss: NodeLoss) -> None:
        self._missing[loss.place] += 1
        if self._is_down or self._place_of(loss.place) is None:
            return
        self.host.lose(loss.place)
        self._taken_at.pop(loss.place, None)
        if loss.neighbour_takes:
            self._taken_at[loss.place] = loss.until_s
        if loss.shadow_lacks_tokens is not None:
            self._covered[loss.place] = loss.shadow_lacks_tokens
        if not self.survivors_stay:
            self._end()
        else:
            noticed_at = self.clock.now + self.detect_s
            self._unnoticed.append((noticed_at, loss.place))
            self.clock.at(noticed_at, self._noticed, self._life)

    def _noticed(self, life: int) -> None:
        """All that was lost by then, at once."""
        if life != self._life:
            return
        now = self.clock.now
        lost = [(self._place_of(node), node) for at, node in self._unnoticed if at <= now]
        self._unnoticed = [one for one in self._unnoticed if one[0] > now]
        losses = [
            Loss(place, node not in self._taken_at) for place, node in lost if place is not None
        ]
        if losses:
            self._advance(StagesLost(tuple(losses)))

    def _asleep(self, sleep: HostSuspended) -> None:
        is_there = self._place_of(sleep.place) is not None
        if self._is_down or self._missing[sleep.place] or not is_there:
            return
        self.host.suspend(sleep.place, sleep.until_s)
        if self.survivors_stay and sleep.at_s + sleep.silent_s < sleep.until_s:
            self.clock.at(sleep.at_s + sleep.silent_s, self._silent, (sleep, self._life))

    def _silent(self, what: tuple[HostSuspended, int]) -> None:
        """A ring that does not wait for as long as others do has a standby."""
        sleep, life = what
        place = self._place_of(sleep.place)
        is_known = place in self._state.fresh or sleep.place in self._missing
        if life == self._life and place is not None and not is_known:
            self.clock.at(self.clock.now + sleep.load_s, self._loaded, sleep.place)
            self._missing[sleep.place] += 1
            has_standby = sleep.silent_s < SILENT_LOST_S
            self._advance(StageSilent(place, sleep.silent_s, has_standby))

    def _loaded(self, origin: int) -> None:
        self._missing[origin] -= 1
        self._missing += Counter()  # Only what is missing stays.
        if self._is_down:
            self._restart_if_loaded()
        else:
            self._tell_loaded()

    def _tell_loaded(self) -> None:
        for place in sorted(filter(self._has_loaded, self._loading)):
            self._loading.discard(place)
            self._advance(PlaceLoaded(self._state.attempt, place, self._room(place)))

    def _has_loaded(self, place: int) -> bool:
        """Whether a node is there, and has the layers that it has taken too."""
        node, now = self._nodes[place], self.clock.now
        taken_at = (self._taken_at.get(part, 0.0) for part in node.parts)
        return node.origin not in self._missing and max(taken_at) <= now

    def _late(self, life: int) -> None:
        if life == self._life:
            self._advance(TimePassed())

    # -- what follows ----------------------------------------------------------------------------

    def _advance(self, event: Event) -> None:
        self._state, told = recover(self._state, event, self.clock.now)
        for instruction in told:
            self._obey(instruction)

    def _obey(self, told: Instruction) -> None:
        match told:
            case CountAsLost(place):
                self.host.lose(self._nodes[place].origin)
                self._advance(StagesLost((Loss(place),)))
            case FindFiller(place):
                self._advance(FillerFound(place, self._shadow(place)))
            case FindNeighbour(layers, able):
                self._advance(NeighbourFound(able[0] if self._may_be_taken(layers) else None))
            case BeginEpoch(_, next_members):
                self._nodes = tuple(map(self._node_in, next_members))
                self.host.pause()
                self._loading.clear()
                if self._state.due_at is not None:
                    self.clock.at(self._state.due_at, self._late, self._life)
            case LoadPlaces(places):
                self._loading = set(places)
                self._tell_loaded()
            case ListRequests():
                self._advance(RequestsListed(self._state.attempt, self.host.listed()))
            case JoinEpoch(resumes):
                self.host.join(self._nodes, resumes, partial(self._entered, self._state.attempt))
            case ResumeRequests():
                self.host.go_on(self._state.listed, told.missing)
                self._advance(WentOn())
            case EndRing():
                self._end()

    def _shadow(self, place: int) -> Filler | None:
        lacks = self._covered.pop(self._nodes[place].origin, None)
        if lacks is None:
            return None
        listed = self.host.listed()
        held = ((one, tokens - lacks) for one, tokens in listed if tokens > lacks)
        return Filler(f"shadow of {place}", self._room(place), tuple(held))

    def _may_be_taken(self, layers: tuple[int, int]) -> bool:
        """Whether nobody but a neighbour can hold any stage of a hole."""
        hole = self._parts(layers)
        lost = [node.origin for node in self._nodes if node.parts.start in hole]
        return all(origin in self._taken_at for origin in lost)

    def _node_in(self, next_member: NextMember) -> RingNode:
        """The node that is a next member, of those that are in places now."""
        node = self._nodes[next_member.place]
        if isinstance(next_member, Extends):
            return replace(node, parts=self._parts(next_member.layers))
        return node

    def _parts(self, layers: tuple[int, int]) -> range:
        """Stages of the ring as it began that had these layers, [start, end)."""
        starts = [0, *accumulate(stage.layers for stage in self.spec.stages)]
        return range(starts.index(layers[0]), starts.index(layers[1]))

    def _room(self, place: int) -> Room:
        node = self._nodes[place]
        return _room_of(stage_of(self.spec, node.origin, node.parts))

    def _entered(self, attempt: int, place: int, missing: tuple[int, ...]) -> None:
        self._advance(PlaceReady(attempt, place, missing))

    def _end(self) -> None:
        self._is_down = True
        self._life += 1
        self._loading.clear()
        self._covered.clear()
        self._unnoticed.clear()
        self._taken_at.clear()
        self._begin()
        self.host.end()
        self._restart_if_loaded()

    def _restart_if_loaded(self) -> None:
        if not self._missing:
            self._is_down = False
            self.host.restart()


def _as_it_serves(spec: RingSpec) -> RingRecovery:
    slots = [one.state_slots for one in spec.stages if one.state_slots is not None]
    room = RingRoom(min(one.kv_tokens for one in spec.stages), min(slots, default=None))
    members, start = [], 0
    for place, stage in enumerate(spec.stages):
        layers = start, start + stage.layers
        members.append(Member(f"pc {place}", layers, _room_of(stage)))
        start += stage.layers
    return RingRecovery(room, tuple(members))


def _room_of(stage: StageSpec) -> Room:
    return Room(stage.kv_tokens, stage.state_slots)
