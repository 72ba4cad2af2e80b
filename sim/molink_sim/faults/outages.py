"""A node is gone and comes back, or a link is cut for a while.

What the product does today: the coordinator sees that a stage is gone, fails every request of the
ring and ends the ring (`molink.coordinator.requests.ring_client`); the next one begins with empty
KV. So a loss ends an epoch of a ring and the return begins the next; there is no replay.

A cut is one more change of the link's rate, to 0, and back to what it would have been.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from molink_scheduler.batch import BatchClass
from molink_scheduler.events import RunBatch, SendRelease, StageEvent
from molink_scheduler.timing.steps import DecodeClock
from molink_sim.clock import Clock
from molink_sim.network.link import Deliver, ForecastIgnored
from molink_sim.outcome import Usage
from molink_sim.ring.build import Ring
from molink_sim.scenario import FaultSpec, LinkChange, LinkCut, LinkSpec, NodeLoss, RingSpec

__all__ = ["NodeLosses", "cut_link", "cut_links", "silence"]


@dataclass(slots=True)
class NodeLosses:
    """Count of the missing nodes of each ring, which starts anew when the last is back."""

    clock: Clock
    lose: Callable[[int], None]
    restart: Callable[[int], None]
    _missing: dict[int, int] = field(init=False, default_factory=dict)
    """How many nodes of a ring are gone."""

    def plan(self, losses: Sequence[NodeLoss]) -> None:
        """Plan each loss and return on the clock."""
        for loss in losses:
            self.clock.at(loss.at_s, self._gone, loss.ring)
            self.clock.at(loss.until_s, self._back, loss.ring)

    def _gone(self, ring: int) -> None:
        self._missing[ring] = self._missing.get(ring, 0) + 1
        if self._missing[ring] == 1:
            self.lose(ring)

    def _back(self, ring: int) -> None:
        self._missing[ring] -= 1
        if not self._missing[ring]:
            self.restart(ring)


def silence(ring: Ring) -> None:
    """Let nothing more come of what the ring had under way."""
    for stage, line in zip(ring.stages, ring.lines, strict=True):
        stage.core.source = _LostSource()
        stage.link = _LostLink()
        line.usage = Usage("lost", 0.0, 0.0)


@dataclass(slots=True)
class _LostSource:
    """`WorkSource` of a lost stage: it takes all and gives nothing."""

    clock: DecodeClock = field(default_factory=DecodeClock)
    wait_until: float | None = None

    def computed_tokens(self) -> dict[int, int]:
        return {}

    def handle(self, event: StageEvent, now: float) -> list[SendRelease]:
        return []

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[list[SendRelease], RunBatch | None]:
        return [], None

    def next_decode(self, now: float) -> tuple[list[SendRelease], RunBatch | None]:
        return [], None

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        pass


def _drop(message: Any) -> None:
    pass


@dataclass(slots=True)
class _LostLink(ForecastIgnored):
    """Link of a lost ring, which carries nothing."""

    deliver: Deliver = _drop
    rate_bytes_per_s: float = 0.0

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        pass


def cut_links(rings: Sequence[RingSpec], faults: Sequence[FaultSpec]) -> list[RingSpec]:
    """The rings with all cuts among `faults` in their links' changes."""
    found = list(rings)
    for fault in faults:
        if isinstance(fault, LinkCut):
            links = list(found[fault.ring].links)
            links[fault.place] = cut_link(links[fault.place], fault.at_s, fault.until_s)
            found[fault.ring] = replace(found[fault.ring], links=tuple(links))
    return found


def cut_link(link: LinkSpec, at_s: float, until_s: float) -> LinkSpec:
    """The link with a rate of 0 between two moments; its other changes go on after the cut."""
    before = [change for change in link.changes if change.at_s < at_s]
    after = [change for change in link.changes if change.at_s > until_s]
    cut = LinkChange(at_s, 0.0, _in_force(link, at_s).one_way_s)
    back = replace(_in_force(link, until_s), at_s=until_s)
    return replace(link, changes=(*before, cut, back, *after))


def _in_force(link: LinkSpec, when: float) -> LinkChange:
    past = [change for change in link.changes if change.at_s <= when]
    return past[-1] if past else LinkChange(0.0, link.mbps, link.one_way_s)
