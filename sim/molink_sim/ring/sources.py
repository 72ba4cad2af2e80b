"""What feeds a stage's device, as `molink.stage.work_sources`: messages into the core's events,
the core's answers into work.
"""

from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.batch import DECODE, Batch
from molink_scheduler.events import BatchReturned, RequestSubmitted, RunBatch, SendRelease
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.stage.batch_pieces import join_batches
from molink_scheduler.stage.order import Piece, StageOrder
from molink_scheduler.timing.decode_clock import DecodeClock
from molink_sim.network.link import Link
from molink_sim.ring.iteration_head import IterationHead
from molink_sim.ring.messages import Activations, Message

__all__ = ["FifoSource", "HeadSource", "QueueSource", "WorkSource"]

NO_RELEASES: list[SendRelease] = []


class WorkSource(Protocol):
    """Where a stage's next step comes from."""

    def take(self, message: Message, now: float) -> list[SendRelease]:
        """Take a message into account; releases to be carried out come back."""

    def next_work(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """What to compute now, and the releases that go out before it."""

    def next_decode(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """Decode that may interrupt a prefill step, and the releases that go out before it."""

    def prefill_computed(self, work: Activations, elapsed_s: float, now: float) -> None:
        """Learn how long a prefill step took."""

    @property
    def wait_until(self) -> float | None:
        """When to ask for work again although no message came; None when only a message helps."""

    @property
    def clock(self) -> DecodeClock:
        """The rhythm of the micro-batches that pass here."""


@dataclass(slots=True)
class HeadSource:
    """Plans batches with the core; hears from the coordinator and the tail."""

    scheduler: HeadScheduler | IterationHead
    link: Link

    def take(self, message: Message, now: float) -> list[SendRelease]:
        """As `WorkSource` says."""
        assert isinstance(message, (BatchReturned, RequestSubmitted))
        return self.scheduler.handle(message, now)

    def next_work(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """As `WorkSource` says."""
        self.scheduler.link_measured(self.link.rate_bytes_per_s)
        releases, run = self.scheduler.next_batch(now)
        return releases, work_of(run)

    def next_decode(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """As `WorkSource` says."""
        releases, run = self.scheduler.next_decode(now)
        return releases, work_of(run)

    def prefill_computed(self, work: Activations, elapsed_s: float, now: float) -> None:
        """As `WorkSource` says."""
        self.scheduler.prefill_computed(work.rows, elapsed_s, now)

    @property
    def wait_until(self) -> float | None:
        """As the core says."""
        return self.scheduler.wait_until

    @property
    def clock(self) -> DecodeClock:
        """The core's."""
        return self.scheduler.clock


@dataclass(slots=True)
class QueueSource:
    """Computes what the previous stage sent, in the core's order."""

    order: StageOrder[Activations]

    def take(self, message: Message, now: float) -> list[SendRelease]:
        """As `WorkSource` says."""
        if isinstance(message, Activations):
            self.order.push(message.batch, message, now)
            return NO_RELEASES
        assert isinstance(message, SendRelease)
        return [message]

    def next_work(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """As `WorkSource` says."""
        pieces = self.order.next_pieces(now)
        return NO_RELEASES, _joined(pieces) if pieces else None

    def next_decode(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """As `WorkSource` says."""
        pieces = self.order.next_decode()
        return NO_RELEASES, _joined(pieces) if pieces else None

    def prefill_computed(self, work: Activations, elapsed_s: float, now: float) -> None:
        """As `WorkSource` says."""
        self.order.budget.profile.observe(work.rows, elapsed_s)

    @property
    def wait_until(self) -> float | None:
        """As the core says."""
        return self.order.wait_until

    @property
    def clock(self) -> DecodeClock:
        """The core's."""
        return self.order.budget.clock


@dataclass(slots=True)
class FifoSource:
    """A stage of the compared systems: batches in the order in which the head planned them.

    vLLM 0.7 calls its workers in that order, and a worker that is called waits for the rows of just
    this batch: decode that arrives while a prompt is on its way to the stage stays behind it.
    """

    clock: DecodeClock = field(default_factory=DecodeClock)
    wait_until: float | None = None
    _batches: dict[int, Activations] = field(init=False, default_factory=dict)
    _next_id: int = field(init=False, default=0)

    def take(self, message: Message, now: float) -> list[SendRelease]:
        """As `WorkSource` says."""
        if isinstance(message, Activations):
            if message.batch.batch_class is DECODE:
                self.clock.seen(message.batch.micro_batch, now)
            self._batches[message.batch.batch_id] = message
            return NO_RELEASES
        assert isinstance(message, SendRelease)
        return [message]

    def next_work(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """As `WorkSource` says."""
        work = self._batches.pop(self._next_id, None)
        if work is not None:
            self._next_id += 1
        return NO_RELEASES, work

    def next_decode(self, now: float) -> tuple[list[SendRelease], Activations | None]:
        """None: a step ends before the next begins."""
        return NO_RELEASES, None

    def prefill_computed(self, work: Activations, elapsed_s: float, now: float) -> None:
        """Nothing is learned."""


def work_of(run: RunBatch | None) -> Activations | None:
    """The head's batch as it will travel."""
    if run is None:
        return None
    return Activations(run.batch, len(run.token_ids), _kv_tokens(run.batch))


def _joined(pieces: list[Piece[Activations]]) -> Activations:
    first = pieces[0]
    if len(pieces) == 1 and first.batch is first.work.batch:
        return first.work
    batch = join_batches([piece.batch for piece in pieces])
    rows = sum(piece.end - piece.start for piece in pieces)
    return Activations(batch, rows, _kv_tokens(batch))


def _kv_tokens(batch: Batch) -> int:
    return sum([span.end for span in batch.spans])
