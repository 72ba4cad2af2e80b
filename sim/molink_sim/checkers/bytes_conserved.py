"""Bytes conserved: what goes into a link comes out at its far end, once, and nothing else does."""

from typing import Any

from molink_scheduler.batch import BatchClass
from molink_scheduler.drafting.asks import Drafted
from molink_scheduler.events import (
    BatchReturned,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
    StageEvent,
)
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.scenario import ConnectionReset, DuplicatedMessages, Scenario
from molink_sim.simulate import World


class BytesConserved(Checker):
    """Count of every link's messages and bytes, and of the rows that every stage computed."""

    name = "bytes conserved"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._under_way: dict[Place, dict[int, Any]] = {}
        """Messages by identity."""
        self._returns_seen: dict[int, Any] = {}
        """Returned batches that the head has taken: copies may follow."""
        self._unsent_bytes: dict[Place, list[int]] = {}
        """Bytes by batch class."""
        self._reporting: set[Place] = set()
        """Places whose links report what they send."""
        self._rows: dict[Place, int] = {}

    def ring_started(self, life: RingLife) -> None:
        """Count from empty links."""
        for place in life.places:
            self._under_way[place], self._unsent_bytes[place] = {}, [0, 0]
            self._rows[place] = 0

    def link_opened(self, place: Place) -> None:
        """Forget what waited for the link before: it is gone."""
        self._unsent_bytes[place] = [0, 0]

    def went_on(self, life: RingLife) -> None:
        """Forget what was under way: it is dropped where it arrives."""
        for place in life.places:
            self._under_way[place], self._rows[place] = {}, 0

    def offered(self, place: Place, message: Any, batch_class: BatchClass, size_bytes: int) -> None:
        """Note a message that must come out."""
        self._under_way[place][id(message)] = message
        self._unsent_bytes[place][batch_class] += size_bytes

    def carried(self, place: Place, batch_class: BatchClass, size_bytes: int) -> None:
        """No more than was offered, unless it is repeated."""
        if self._repeats(place):
            return
        self._reporting.add(place)
        self._unsent_bytes[place][batch_class] -= size_bytes
        if self._unsent_bytes[place][batch_class] < 0:
            self.mistake(f"the link of {place} sent bytes of {batch_class.name} that nobody gave")

    def taken(self, place: Place, message: StageEvent) -> None:
        """Check that the message was given to the link that leads here."""
        if isinstance(message, RequestSubmitted | RequestCancelled | Drafted):
            return  # It came over no link between stages.
        found = self._under_way[place.before].pop(id(message), None)
        if found is None and not self._is_copy(place, message):
            self.mistake(f"{place} got a {type(message).__name__} that was not under way")
        if isinstance(message, BatchReturned):
            self._returns_seen[id(message)] = message

    def started(self, place: Place, run: RunBatch) -> None:
        """Rows that reach one stage reach all, but for replayed ones."""
        rows = len(run.token_ids) + sum(piece.end - piece.start for piece in run.pieces)
        self._rows[place] += 0 if run.batch.replay else rows
        if rows != run.batch.tokens:
            self.mistake(f"{place} computed {rows} rows of a batch of {run.batch.tokens}")

    def ended(self, world: World) -> None:
        """Check that nothing is left on the way."""
        for place, messages in self._under_way.items():
            if place.life.is_lost or place not in place.life.places:
                continue
            if messages:
                self.mistake(f"{len(messages)} messages never came out of the link of {place}")
            if self._rows[place] != self._rows[place.before]:
                self.mistake(f"{place} computed other rows than the stage before it")
            if any(self._unsent_bytes[place]) and place in self._reporting:
                bytes_left = sum(self._unsent_bytes[place])
                self.mistake(f"{bytes_left} bytes never left on the link of {place}")

    def _repeats(self, place: Place) -> bool:
        """Whether the scenario resets the link's connection."""
        wire = (place.life.number, place.origin)
        return any(
            isinstance(fault, ConnectionReset) and (fault.ring, fault.place) == wire
            for fault in self.scenario.faults
        )

    def _is_copy(self, place: Place, message: StageEvent) -> bool:
        """Whether the scenario sends the head what it has had before."""
        wire = (place.life.number, place.before.origin)
        return id(message) in self._returns_seen and any(
            isinstance(fault, DuplicatedMessages) and (fault.ring, fault.place) == wire
            for fault in self.scenario.faults
        )
