"""One small tree of errors; each class says whose fault it was, each message what to do next."""

__all__ = [
    "CheckpointError",
    "ControlError",
    "FrameError",
    "InvalidRequestError",
    "JoinRefusedError",
    "MolinkError",
    "RingError",
    "StageError",
    "UnsupportedModelError",
    "UserError",
    "WeightsError",
]


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


class FrameError(MolinkError):
    """Raised when a peer sent a frame that does not follow the schema or exceeds a limit."""


class StageError(MolinkError):
    """Raised when a stage process failed: it could not load, or died while it served."""


class RingError(MolinkError):
    """Raised when the ring cannot serve a request now: it is starting, draining or broken (503)."""


class WeightsError(MolinkError):
    """Raised when the weights of a stage cannot be fetched: the disk is full, or what arrives is
    refused, damaged or nothing at all, too often."""


class ControlError(MolinkError):
    """Raised when an agent and the coordinator cannot understand, reach or trust each other."""


class JoinRefusedError(ControlError):
    """Raised when a node may not join: its invite or the node itself is not, or no longer,
    welcome."""
