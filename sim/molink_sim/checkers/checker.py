"""The events of a run that a checker gets. Each invariant is a `Checker` in a file of its own.

A checker only listens: it keeps its own books from what passes by, and records what is wrong. It
never asks the code under test for its opinion where it can count for itself.
"""

from dataclasses import dataclass, field
from typing import Any

from molink_scheduler.batch import BatchClass
from molink_scheduler.events import RunBatch, SampledToken, StageEvent
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.resume import Resume
from molink_sim.ring.baselines import IterationHead
from molink_sim.scenario import RingSpec, Scenario
from molink_sim.simulate import World

MISTAKES_MAX = 3
"""Kept of one invariant in one run: the first is the cause, the rest follows from it."""


@dataclass(slots=True, eq=False)
class RingLife:
    """A ring from its start to its end, over all losses after which it goes on."""

    number: int
    """Number of the ring."""
    spec: RingSpec
    head: HeadScheduler | IterationHead
    places: list["Place"] = field(default_factory=list)
    is_lost: bool = False


@dataclass(slots=True, eq=False)
class Place:
    """A place in a ring for a stage, which may be replaced, and the link that leaves it."""

    life: RingLife
    index: int
    connection: int = 0
    """Number of the link: another one each time that either end was replaced."""
    origin: int = field(init=False)
    """Its place when the ring began; faults name this one."""

    def __post_init__(self) -> None:
        self.origin = self.index

    def __str__(self) -> str:
        return f"ring {self.life.number} stage {self.origin}"

    @property
    def before(self) -> "Place":
        """The place whose link leads here."""
        return self.life.places[self.index - 1]


class Checker:
    """Invariant that is checked in a run by the events whose methods it overrides.

    Messages are the same objects wherever they pass.
    """

    name = ""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.mistakes: list[str] = []
        """The first few, one sentence each."""

    def mistake(self, sentence: str) -> None:
        """Record that the invariant does not hold."""
        if len(self.mistakes) < MISTAKES_MAX:
            self.mistakes.append(sentence)

    def ring_started(self, life: RingLife) -> None:
        """Take note of a ring that begins."""

    def ring_lost(self, life: RingLife) -> None:
        """It has ended; nothing more comes of it."""

    def lost(self, place: Place) -> None:
        """The stage at a place is gone; the ring may go on."""

    def link_opened(self, place: Place) -> None:
        """Another link leaves a place, with nothing on it; the next stage was replaced, or this
        one."""

    def grew(self, place: Place, *, is_behind: bool) -> None:
        """The stage at a place has taken lost layers, behind its own or before them. The place that
        had them is left out of its life's places when the ring has gone on."""

    def joined(self, place: Place, resume: Resume) -> None:
        """The stage at a place went on after a loss with what it keeps; a fresh one has replaced
        another, or waits for its first work."""

    def went_on(self, life: RingLife) -> None:
        """All stages have joined: what was under way is dropped from now on."""

    def offered(self, place: Place, message: Any, batch_class: BatchClass, size_bytes: int) -> None:
        """A message was given to the link that leaves a place."""

    def delivered(self, place: Place, message: Any) -> None:
        """A message has come out of the link that leaves a place, perhaps too late to be taken."""

    def carried(self, place: Place, batch_class: BatchClass, size_bytes: int) -> None:
        """So many bytes of messages, headers of chunks not counted, have left on that link.

        Only of links that send one piece after the other: paced ones and FIFOs.
        """

    def taken(self, place: Place, message: StageEvent) -> None:
        """A stage took a message that had arrived."""

    def released(self, place: Place, request_id: int) -> None:
        """A stage forgot a request's KV."""

    def refused(self, place: Place, reason: str) -> None:
        """A stage dropped a message that it could not carry out."""

    def started(self, place: Place, run: RunBatch) -> None:
        """A stage began to compute."""

    def sampled(self, life: RingLife, tokens: tuple[SampledToken, ...]) -> None:
        """The coordinator received tokens."""

    def ended(self, world: World) -> None:
        """The run is over."""
