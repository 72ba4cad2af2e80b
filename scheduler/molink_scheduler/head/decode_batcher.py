"""Who circles? The sequences that decode, those of them at home, and the micro-batches they go in.

A sequence joins with its first token and leaves when it ends or gives its blocks back. In between
it is out with a micro-batch or at home on the head. Whenever a place on the ring is free, those at
home depart together, who has waited longest first, at most their even share (`micro_batches`); what
each trip took says how many places there should be (`micro_batch_choice`).

Pure: times are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from molink_scheduler.batch import Span
from molink_scheduler.head.micro_batch_choice import MicroBatchChoice
from molink_scheduler.head.micro_batches import MicroBatches
from molink_scheduler.head.prefill_load import PrefillLoad
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.timing.round_tracker import RoundTracker, StageStamp
from molink_scheduler.timing.steps import DecodeClock

__all__ = ["DecodeBatcher", "Departure"]


class Departure(NamedTuple):
    """A micro-batch that leaves the head."""

    place: int
    spans: list[Span]
    """At least one, of one token each."""


@dataclass(slots=True)
class DecodeBatcher:
    """The decode of one ring, as its head keeps it."""

    settings: HeadSettings
    clock: DecodeClock
    """The head's."""
    micro_batches: MicroBatches = field(init=False)
    tracker: RoundTracker = field(init=False)
    _choice: MicroBatchChoice | None = field(init=False, default=None)
    """None: the operator chose the number."""
    _members: set[int] = field(init=False, default_factory=set)
    _at_home: dict[int, Sequence] = field(init=False, default_factory=dict)
    """Members that could depart now, in the order in which they came home."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.micro_batches = MicroBatches(settings.ring.micro_batch_count or 1)
        self.tracker = RoundTracker(settings.row_bytes)
        if settings.ring.micro_batch_count is None:
            self._choice = MicroBatchChoice(settings.ring.micro_batch_candidates, count=1)

    def came_home(self, sequence: Sequence) -> None:
        """Its next token is known: it may depart, for the first time or again."""
        self._members.add(sequence.request_id)
        self._at_home[sequence.request_id] = sequence

    def leave(self, request_id: int) -> None:
        """A sequence ends or is preempted; one that never circled is fine."""
        self._members.discard(request_id)
        self._at_home.pop(request_id, None)

    def depart(self, has_room: Callable[[Sequence], bool], now: float) -> Departure | None:
        """The next micro-batch; None when no place is free or nobody at home can go.

        `has_room` is asked of each before it goes: False leaves it at home for now.
        """
        place = self.micro_batches.free_place()
        if place is None or not (spans := self._take_along(has_room)):
            return None
        self.micro_batches.departed(place)
        self.tracker.departed(place, len(spans), now)
        return Departure(place, spans)

    def trip_ended(
        self, place: int, stamps: tuple[StageStamp, ...], load: PrefillLoad, now: float
    ) -> None:
        """A micro-batch is back: its place is free, and there may be more or fewer from now on."""
        self.micro_batches.returned(place)
        self.clock.seen(place, now)
        trip_s = self.tracker.returned(place, stamps, now)
        if self._choice is not None and trip_s is not None:
            self.micro_batches.count = self._choice.trip_ended(
                self.clock.round_s or trip_s,
                len(self._members),
                self.tracker.model,
                now,
                load.share(now),
            )

    def _take_along(self, has_room: Callable[[Sequence], bool]) -> list[Span]:
        at_home, spans = self._at_home, list[Span]()
        share = self.micro_batches.share(len(self._members), len(at_home))
        for request_id, sequence in list(at_home.items()):
            if len(spans) == share:
                break
            # Asked for each anew: making room for one may have preempted another.
            if request_id in at_home and has_room(sequence):
                del at_home[request_id]
                spans.append(sequence.take_span(1))
        return spans
