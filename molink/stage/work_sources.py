"""What feeds a stage's device: the head's scheduler, or the queue of what the previous stage sent.

Both only translate: messages into the core's events, the core's answers into work for the executor.
"""

import time
from dataclasses import dataclass
from typing import Protocol, assert_never

import torch

from molink.errors import FrameError
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.wire.messages import (
    Activations,
    Cancel,
    FinishReason,
    Forget,
    Message,
    Sampled,
    SetCodec,
    Submit,
)
from molink_scheduler.batch import Batch, BatchClass
from molink_scheduler.events import (
    BatchReturned,
    RequestCancelled,
    RequestSubmitted,
    SampledToken,
    SendRelease,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.stage.batch_pieces import join_batches
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.order import Piece, StageOrder
from molink_scheduler.timing.decode_clock import DecodeClock
from molink_scheduler.timing.prefill_budget import PrefillBudget
from molink_scheduler.timing.step_profile import StepProfile

__all__ = ["HeadSource", "Pieces", "QueueSource", "Work", "WorkSource"]

Pieces = tuple[Piece[torch.Tensor], ...]
"""Parts of unpacked messages."""


@dataclass(frozen=True, slots=True)
class Work:
    """A batch ready to compute, with its input: token ids on the head, activations elsewhere."""

    batch: Batch
    token_ids: tuple[int, ...] | None = None
    pieces: Pieces = ()


class WorkSource(Protocol):
    """Where the next step comes from."""

    def take(self, message: Message) -> list[SendRelease]:
        """Take a message into account; releases to be carried out come back.

        Raises FrameError for a message that cannot be read or carried out; it changes nothing.
        """

    def next_work(self) -> tuple[list[SendRelease], Work | None]:
        """What to compute now, and the releases that go out before it."""

    def next_decode(self) -> tuple[list[SendRelease], Work | None]:
        """Decode that may interrupt a prefill step, and the releases that go out before it."""

    def computed(self, batch: Batch, elapsed_s: float) -> None:
        """Learn how long a step took."""

    @property
    def wait_until(self) -> float | None:
        """When to ask for work again although no message came; None when only a message helps."""

    @property
    def counts(self) -> tuple[int, int] | None:
        """Requests running and waiting, where they are known."""

    @property
    def clock(self) -> DecodeClock:
        """The rhythm of the micro-batches that pass here."""

    @property
    def micro_batch_count(self) -> int | None:
        """How many may circle, where it is known."""


@dataclass(slots=True)
class HeadSource:
    """Plans batches with the core; hears from the coordinator and the tail."""

    scheduler: HeadScheduler
    links: StageLinks

    def take(self, message: Message) -> list[SendRelease]:
        """Turn a message into the core's event."""
        now = time.monotonic()
        match message:
            case Submit(request):
                return self.scheduler.handle(RequestSubmitted(request), now)
            case Cancel(request_id):
                return self.scheduler.handle(RequestCancelled(request_id), now)
            case Sampled():
                return self.scheduler.handle(_returned(message), now)
            case SetCodec(codec):
                self.scheduler.codec = codec
                return []
            case Activations() | Forget():
                return []
            case _:
                assert_never(message)

    def next_work(self) -> tuple[list[SendRelease], Work | None]:
        """The core's next batch."""
        self.scheduler.link_measured(self.links.next_rate_bytes_per_s)
        releases, run = self.scheduler.next_batch(time.monotonic())
        return releases, Work(run.batch, token_ids=run.token_ids) if run else None

    def next_decode(self) -> tuple[list[SendRelease], Work | None]:
        """The core's next micro-batch."""
        releases, run = self.scheduler.next_decode(time.monotonic())
        return releases, Work(run.batch, token_ids=run.token_ids) if run else None

    def computed(self, batch: Batch, elapsed_s: float) -> None:
        """Feed the profile by which prefill steps are sized."""
        if batch.batch_class is BatchClass.PREFILL:
            self.scheduler.prefill_computed(batch.tokens, elapsed_s, time.monotonic())

    @property
    def wait_until(self) -> float | None:
        """As the core says."""
        return self.scheduler.wait_until

    @property
    def counts(self) -> tuple[int, int] | None:
        """Requests running and waiting."""
        return self.scheduler.running_count, self.scheduler.waiting_count

    @property
    def clock(self) -> DecodeClock:
        """The core's."""
        return self.scheduler.clock

    @property
    def micro_batch_count(self) -> int | None:
        """As the core chose."""
        return self.scheduler.micro_batches.count


@dataclass(slots=True)
class QueueSource:
    """Computes what the previous stage sent, in the core's order."""

    order: StageOrder[torch.Tensor]
    packing: Packing
    book: StageBook

    @classmethod
    def for_steps_of(cls, rows_max: int, packing: Packing, book: StageBook) -> "QueueSource":
        """A source whose prefill steps have at most `rows_max` rows."""
        order = StageOrder[torch.Tensor](PrefillBudget(rows_max, DecodeClock(), StepProfile()))
        return cls(order, packing, book)

    def take(self, message: Message) -> list[SendRelease]:
        """Unpack and queue activations; a release comes back at once."""
        match message:
            case Activations(batch):
                _refuse(self.book.objection(batch))
                rows_TD = self.packing.unpack(message)
                self.book.received(batch)
                self.order.push(batch, rows_TD, time.monotonic())
            case Forget(release):
                _refuse(self.book.release_objection(release))
                self.book.released(release)
                return [SendRelease(release)]
            case _:
                pass
        return []

    def next_work(self) -> tuple[list[SendRelease], Work | None]:
        """Decode first, then prefill rows that fit before the next decode."""
        return [], _work(self.order.next_pieces(time.monotonic()))

    def next_decode(self) -> tuple[list[SendRelease], Work | None]:
        """The micro-batch that has waited longest."""
        return [], _work(self.order.next_decode())

    def computed(self, batch: Batch, elapsed_s: float) -> None:
        """Feed the book, and the profile by which prefill steps are sized."""
        self.book.computed(batch)
        if batch.batch_class is BatchClass.PREFILL:
            self.order.budget.profile.observe(batch.tokens, elapsed_s)

    @property
    def wait_until(self) -> float | None:
        """As the core says."""
        return self.order.wait_until

    @property
    def counts(self) -> tuple[int, int] | None:
        """Unknown here."""
        return None

    @property
    def clock(self) -> DecodeClock:
        """The core's."""
        return self.order.budget.clock

    @property
    def micro_batch_count(self) -> int | None:
        """Unknown here."""
        return None


def _work(pieces: list[Piece[torch.Tensor]]) -> Work | None:
    if not pieces:
        return None
    return Work(join_batches([piece.batch for piece in pieces]), pieces=tuple(pieces))


def _refuse(objection: str | None) -> None:
    if objection is not None:
        raise FrameError(objection)


def _returned(message: Sampled) -> BatchReturned:
    sampled = tuple(
        SampledToken(token.request_id, token.token_id, token.finish is not FinishReason.NONE)
        for token in message.tokens
    )
    return BatchReturned(
        message.batch_class, message.micro_batch, message.spans, sampled, message.stamps
    )
