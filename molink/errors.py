"""One small tree of errors: the class names whose fault it was, the message what to do next.

`ErrorGuard` is for loops that an error must not end.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType


class MolinkError(Exception):
    """Raised when something that MoLink foresees goes wrong; the message is one sentence for a
    person."""


class UserError(MolinkError):
    """Raised when a command or an option cannot be carried out as given (the CLI exits with 2)."""


class InvalidRequestError(UserError):
    """Raised when an API request cannot be served as given (the API answers 400).

    `param` names the offending field of the request where there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CheckpointError(UserError):
    """Raised when a model directory or hub id cannot be read, or lacks a tensor that a stage
    needs."""


class UnsupportedModelError(UserError):
    """Raised when an architecture cannot be staged, or the self-test shows that it comes out
    wrong."""


class NoRoomError(UserError):
    """Raised when a device has no room for what a stage is to hold."""


class FrameError(MolinkError):
    """Raised when a peer sent a frame that does not follow the schema or exceeds a limit."""


class LinkFullError(MolinkError):
    """Raised when a link can take no more messages, because its far end takes none; one clause."""


class StageError(MolinkError):
    """Raised when a stage process failed: it could not load, or died while it served."""


class LendersChangedError(StageError):
    """Raised where a ring has to go on in another epoch, with all of its stages, because a lender
    of theirs has gone or come."""


class LenderLostError(LendersChangedError):
    """Raised when a process that holds KV for a stage is gone, late, or gives no numbers."""


class RoomGrownError(LendersChangedError):
    """Raised when a ring has more room than the terms of its epoch let it count with."""


class DeviceMemoryError(StageError):
    """Raised when a device that a stage computes on has no memory left for a step."""


class LinkLostError(StageError):
    """Raised when a link of a stage is lost or cannot be opened: either end may be at fault.

    `link` is the link's name, "next" or "coordinator".
    """

    def __init__(self, message: str, link: str) -> None:
        super().__init__(message)
        self.link = link


class RingError(MolinkError):
    """Raised when the ring cannot serve a request now: it is starting, draining or broken (503)."""


class OverloadedError(RingError):
    """Raised when more requests come than the cluster can begin in time (429).

    `retry_s` is when it is worth to ask again.
    """

    def __init__(self, message: str, retry_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class RowsRefusedError(MolinkError):
    """Raised when numbers of a request are not finite, or beyond a stage's number format (500)."""


class DeadlineError(MolinkError):
    """Raised when the deadline that a user gave a request comes before its first token (504)."""


class WeightsError(MolinkError):
    """Raised when the weights of a stage cannot be fetched: the disk is full, or what arrives is
    refused, damaged or nothing at all, too often."""


class ControlError(MolinkError):
    """Raised when an agent and the coordinator cannot understand, reach or trust each other."""


class StorageError(ControlError):
    """Raised when a file of this machine cannot be used: its operator's trouble, nobody else's."""


class NotNowError(ControlError):
    """Raised when the coordinator cannot take a node in just now (503); ask again later."""


class JoinRefusedError(ControlError):
    """Raised when a node may not join: its invite or the node itself is not, or no longer,
    welcome."""


log = logging.getLogger(__name__)


@dataclass(slots=True)
class ErrorGuard:
    """Context manager that logs and counts an error of its block instead of raising it.

    For one step of a loop that must continue, whatever a node sends or this PC runs out of.
    A cancellation passes. Of each kind of error the 1st, 2nd, 4th, 8th ... is logged, so that one
    that comes with every step, or that a node sends on purpose, does not fill the log.
    """

    step: str
    """What failed, for the log."""
    counts: Counter[type[BaseException]] = field(default_factory=Counter)

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if kind is None or not isinstance(error, Exception):
            return False
        self.counts[kind] += 1
        if self.counts[kind].bit_count() == 1:
            self._log(error, self.counts[kind])
        return True

    def _log(self, error: Exception, count: int) -> None:
        """One sentence for what MoLink foresees, the traceback of anything else."""
        is_known = isinstance(error, MolinkError)
        what, trace = (str(error), None) if is_known else (repr(error), error)
        log.warning("%s failed (%d so far): %s", self.step, count, what, exc_info=trace)
