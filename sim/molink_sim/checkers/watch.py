"""Wrap the parts of a world, so that checkers get the events of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import assert_never

from molink_scheduler.batch import BatchClass
from molink_scheduler.drafting.asks import AskDrafts
from molink_scheduler.events import (
    BookOrder,
    EventOrder,
    Refuse,
    RunBatch,
    SampledToken,
    SendCacheChange,
    SendCapacity,
    SendFetched,
    SendRelease,
    StageEvent,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.resume import Resume
from molink_scheduler.stage.core import WorkSource
from molink_scheduler.timing.steps import DecodeClock
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.network.link import Deliver, Link, Sent
from molink_sim.network.paced import CHUNK_HEADER_BYTES, PacedLink
from molink_sim.network.unpaced import FifoLink, SerialLink
from molink_sim.outcome import BusyTimes
from molink_sim.ring.baselines import IterationHead
from molink_sim.ring.build import Ring
from molink_sim.scenario import Scenario

Listeners = list[Callable[..., None]]


class Watchers:
    """Watch (`molink_sim.simulate`) that passes a run's events to its checkers."""

    def __init__(self, scenario: Scenario, checkers: Sequence[Checker]) -> None:
        self.scenario = scenario
        self.checkers = checkers
        self._lives: dict[int, RingLife] = {}
        self._events = _Events.of(checkers)

    def ring_started(self, number: int, ring: Ring) -> None:
        """Wrap all of its stages and links."""
        life = RingLife(number, self.scenario.rings[number], _head(ring))
        life.places = [Place(life, index) for index in range(len(ring.stages))]
        self._lives[number] = life
        for place in life.places:
            self._wrap_link(ring, place)
            self._wrap_source(ring, place)
        for checker in self.checkers:
            checker.ring_started(life)

    def stage_lost(self, ring: Ring, place: int) -> None:
        """Tell the checkers that the stage in this place is gone."""
        for checker in self.checkers:
            checker.lost(self._place(ring, place))

    def link_opened(self, ring: Ring, place: int) -> None:
        """Watch the new link that leaves this place."""
        where = self._place(ring, place)
        where.connection += 1
        self._wrap_link(ring, where)
        for checker in self.checkers:
            checker.link_opened(where)

    def stage_grew(self, ring: Ring, place: int, *, is_behind: bool) -> None:
        """Report that the stage in this place has taken lost layers."""
        for checker in self.checkers:
            checker.grew(self._place(ring, place), is_behind=is_behind)

    def stage_joined(self, ring: Ring, place: int, resume: Resume) -> None:
        """Wrap its new core."""
        where = self._place(ring, place)
        if place == 0:
            where.life.head = _head(ring)
        self._wrap_source(ring, where)
        for checker in self.checkers:
            checker.joined(where, resume)

    def ring_went_on(self, ring: Ring) -> None:
        """Leave out the places that are no more, and report that all stages have joined."""
        life, count = self._lives[ring.number], len(ring.stages)
        life.places[:] = [self._place(ring, place) for place in range(count)]
        life.spec = ring.spec
        for index, place in enumerate(life.places):
            place.index = index
        for checker in self.checkers:
            checker.went_on(life)

    def _place(self, ring: Ring, place: int) -> Place:
        """The place of the ring's life that is in this place now."""
        places, origin = self._lives[ring.number].places, ring.nodes[place].origin
        return next(one for one in places if one.origin == origin)

    def _wrap_link(self, ring: Ring, place: Place) -> None:
        index = ring.places[place.origin]
        stage, line, link = ring.stages[index], ring.lines[index], ring.links[index]
        header_bytes = _header_bytes(link)
        if header_bytes is not None:
            line.usage = _WireUsage(line.usage, place, self._events, header_bytes)
        link.deliver = _WatchedDelivery(link.deliver, place, place.connection, self._events)
        stage.link = _WatchedLink(link, place, self._events)

    def _wrap_source(self, ring: Ring, place: Place) -> None:
        core = ring.stages[ring.places[place.origin]].core
        core.source = _WatchedSource(core.source, place, self._events)

    def ring_lost(self, number: int) -> None:
        """End the ring's life."""
        self._lives[number].is_lost = True
        for checker in self.checkers:
            checker.ring_lost(self._lives[number])

    def sampled(self, number: int, tokens: tuple[SampledToken, ...]) -> None:
        """Report the tokens that the coordinator takes."""
        for listener in self._events.sampled:
            listener(self._lives[number], tokens)


@dataclass(frozen=True, slots=True)
class _Events:
    """Methods of the checkers, by the event that they override."""

    offered: Listeners
    delivered: Listeners
    carried: Listeners
    taken: Listeners
    released: Listeners
    refused: Listeners
    started: Listeners
    sampled: Listeners

    @classmethod
    def of(cls, checkers: Sequence[Checker]) -> "_Events":
        return cls(*[_listeners(checkers, field.name) for field in fields(cls)])

    def steps(
        self, place: Place, found: tuple[Sequence[BookOrder], RunBatch | None]
    ) -> tuple[Sequence[BookOrder], RunBatch | None]:
        """Report what a stage does next."""
        releases, run = found
        self.releases(place, releases)
        if run is not None:
            for listener in self.started:
                listener(place, run)
        return found

    def releases(self, place: Place, decisions: Sequence[EventOrder]) -> None:
        """Report what a stage forgets or refuses."""
        for decision in decisions:
            match decision:
                case SendRelease(release):
                    for listener in self.released:
                        listener(place, release.request_id)
                case SendCacheChange() | SendCapacity() | SendFetched() | AskDrafts():
                    pass
                case Refuse(reason):
                    for listener in self.refused:
                        listener(place, reason)
                case _:
                    assert_never(decision)


def _listeners(checkers: Sequence[Checker], name: str) -> Listeners:
    default = getattr(Checker, name)
    return [getattr(one, name) for one in checkers if getattr(type(one), name) is not default]


def _head(ring: Ring) -> HeadScheduler | IterationHead:
    head = ring.stages[0].core.source
    assert isinstance(head, HeadScheduler | IterationHead), "it is not wrapped yet"
    return head


def _header_bytes(link: Link) -> int | None:
    """Header of a piece; None for links that do not send one piece after the other."""
    if isinstance(link, PacedLink):
        return CHUNK_HEADER_BYTES
    return 0 if isinstance(link, FifoLink | SerialLink) else None


@dataclass(slots=True)
class _WatchedSource:
    """`WorkSource` that reports what its stage takes and starts."""

    inner: WorkSource
    place: Place
    events: _Events

    def computed_tokens(self) -> dict[int, int]:
        return self.inner.computed_tokens()

    def handle(self, event: StageEvent, now: float) -> Sequence[EventOrder]:
        for listener in self.events.taken:
            listener(self.place, event)
        decisions = self.inner.handle(event, now)
        self.events.releases(self.place, decisions)
        return decisions

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[Sequence[BookOrder], RunBatch | None]:
        return self.events.steps(self.place, self.inner.next_batch(link_bytes_per_s, now))

    def next_decode(self, now: float) -> tuple[Sequence[BookOrder], RunBatch | None]:
        return self.events.steps(self.place, self.inner.next_decode(now))

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        self.inner.computed(run, elapsed_s, now)

    @property
    def room(self) -> StageRoom:
        return self.inner.room

    @property
    def wait_until(self) -> float | None:
        return self.inner.wait_until

    @property
    def decode_rows_waiting(self) -> int:
        return self.inner.decode_rows_waiting

    @property
    def clock(self) -> DecodeClock:
        return self.inner.clock


@dataclass(slots=True)
class _WatchedLink:
    """`Link` that reports the messages that it is given."""

    inner: Link
    place: Place
    events: _Events

    def set_next_decode_due(self, due_at: float | None) -> None:
        self.inner.set_next_decode_due(due_at)

    def set_decode_result_due(self, due_at: float) -> None:
        self.inner.set_decode_result_due(due_at)

    @property
    def deliver(self) -> Deliver:
        return self.inner.deliver

    @deliver.setter
    def deliver(self, deliver: Deliver) -> None:
        self.inner.deliver = deliver

    @property
    def rate_bytes_per_s(self) -> float:
        return self.inner.rate_bytes_per_s

    def offer(self, message: Sent, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        for listener in self.events.offered:
            listener(self.place, message.what, batch_class, size_bytes)
        self.inner.offer(message, batch_class, size_bytes, rows)


@dataclass(frozen=True, slots=True)
class _WatchedDelivery:
    """Delivery of a link, which is reported as long as no other link has taken its place."""

    inner: Deliver
    place: Place
    connection: int
    events: _Events

    def __call__(self, message: Sent) -> None:
        if self.connection == self.place.connection:
            for listener in self.events.delivered:
                listener(self.place, message.what)
        self.inner(message)


class _WireUsage(BusyTimes):
    """`Usage` of a wire that reports each piece."""

    __slots__ = ("_events", "_header_bytes", "_inner", "_place")

    def __init__(self, inner: BusyTimes, place: Place, events: _Events, header_bytes: int) -> None:
        BusyTimes.__init__(self, inner.lane, inner.counted_from_s, inner.counted_until_s)
        self._inner, self._place, self._events = inner, place, events
        self._header_bytes = header_bytes

    def add(
        self,
        start_s: float,
        end_s: float,
        batch_class: BatchClass,
        rows: int,
        size_bytes: int = 0,
        *,
        is_new: bool = True,
    ) -> None:
        self._inner.add(start_s, end_s, batch_class, rows, size_bytes, is_new=is_new)
        for listener in self._events.carried:
            listener(self._place, batch_class, size_bytes - self._header_bytes)
