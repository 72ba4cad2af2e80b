"""A stage's end of the link to the process with its weights (`engine_protocol.computing`).

The process that computes may be lost at any byte: it has no KV, no table and no tokens, so another
fork makes the pass again, and writes the same keys and values to the same slots. Rows of steps that
had ended are not computed again, and the ring does not hear of it.

A pass may be asked for inside of another one. Where the process is lost in the inner one, the outer
one finds another process in its place when it goes on, and is made again as well.
"""

import json
import logging
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from molink.compute.frames import pass_parts, read_call, read_rows
from molink.engine_protocol.computing import Attend, LayerCall, ModelPass, WeightsLoaded
from molink.errors import FrameError, NoRoomError, StageError, UserError
from molink.lender.protocol import FORK_REQUEST, Buffer, Frame, Kind, Receiver, send
from molink.lender.starting import started_process
from molink.printable import plain_line
from molink.stage_protocol.messages import LoadStage, encode_line
from molink.wire.elements import Elements

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 * 1024

PASSES_MAX = 4
"""Passes that are begun for one step: a process that is lost in each of them is lost by what it
computes."""


def computing_here() -> "Callable[[], ComputeClient] | None":
    """How a stage of this PC gets a process for its weights; None: there are no forks here that
    libraries promise to survive."""
    return ComputeClient if sys.platform == "linux" else None


class _ProcessLostError(Exception):
    """Raised when the process that computes a pass is gone, or another one is in its place."""


@dataclass(slots=True)
class ComputeClient:
    """Link to the process with the weights of one stage, and to its fork that computes."""

    replaced: int = field(init=False, default=0)
    """Processes that were lost and replaced."""
    _load: LoadStage = field(init=False)
    _loaded: WeightsLoaded = field(init=False)
    _process: "subprocess.Popen[bytes]" = field(init=False)
    """The process that has loaded the weights."""
    _server: socket.socket = field(init=False)
    _link: socket.socket = field(init=False)
    _receiver: Receiver = field(init=False)
    _number: int = field(init=False, default=0)
    """Number of the fork that computes."""

    def load(self, load: LoadStage, progress: Callable[[float], None]) -> WeightsLoaded:
        """Have the weights loaded. Raises UserError or StageError with one sentence."""
        self._load = replace(load, keys=None, cache_room=None, drafter=None)
        self._loaded = self._start(progress)
        self._fork()
        return self._loaded

    def rows(self, given: ModelPass, attend: Attend) -> Elements:
        """Rows [T, D] of a pass, or logits [R, W]; see `Computing`."""
        parts = pass_parts(given)
        for _ in range(PASSES_MAX):
            link, receiver = self._link, self._receiver
            try:
                return self._passed(link, receiver, parts, attend)
            except _ProcessLostError as error:
                self._replace(link, len(given.positions), str(error))
        raise StageError(
            f"the process with the weights of layers {self._load.work.layers[0]} to "
            f"{self._load.work.layers[1] - 1} was lost {PASSES_MAX} times in one step"
        )

    # -- one pass -------------------------------------------------------------------------------

    def _passed(
        self, link: socket.socket, receiver: Receiver, parts: Sequence[Buffer], attend: Attend
    ) -> Elements:
        dtype = self._loaded.dtype
        _send(link, Frame(Kind.RUN), parts)
        while True:
            frame, content = _received(receiver)
            match frame.kind:
                case Kind.CALL:
                    out_THV = _attended(link, _call(frame, content, dtype), attend)
                    if link is not self._link:
                        raise _ProcessLostError("an inner step has found it lost")
                    _send(link, Frame(Kind.ATTENDED), [out_THV.data])
                case Kind.COMPUTED:
                    return read_rows(content, dtype, (frame.number, -1))
                case Kind.REFUSED:
                    raise StageError(plain_line(bytes(content).decode(errors="replace")))
                case _:
                    raise _ProcessLostError(f"it sends {frame.kind.name}")

    # -- processes ------------------------------------------------------------------------------

    def _start(self, progress: Callable[[float], None]) -> WeightsLoaded:
        self._server, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            self._process = started_process("molink.compute.weights_process", control, 1)
        self._server.sendall(encode_line(self._load))
        while message := self._server.recv(MESSAGE_BYTES_MAX):
            fields = json.loads(message)
            if "fraction" in fields:
                progress(fields["fraction"])
                continue
            if "refused" in fields:
                raise _refusal(plain_line(fields["refused"]), fields)
            return WeightsLoaded(**fields)
        raise StageError("the process with the weights ended while it loaded them")

    def _fork(self) -> None:
        """Have another process compute. Raises OSError where nobody has the weights any more."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._number += 1
            request = FORK_REQUEST.pack(self._number, self._load.work.threads)
            socket.send_fds(self._server, [request], [theirs.fileno()])
        self._link, self._receiver = ours, Receiver(ours)

    def _replace(self, lost: socket.socket, rows: int, why: str) -> None:
        """Have another process compute in place of one that is lost, if none does yet."""
        if lost is not self._link:
            return
        lost.close()
        try:
            self._end()
            self._fork()
        except OSError:  # What has the weights has gone, too.
            self._server.close()
            self._start(lambda fraction: None)
            self._fork()
        self.replaced += 1
        log.warning(
            "The process that computed was lost: %s. Another one has its weights, and computes a "
            "step of %d rows again; no KV is lost.",
            *(why, rows),
        )

    def _end(self) -> None:
        """End the process that computed, also where it stands still."""
        self._server.sendall(FORK_REQUEST.pack(self._number, 0))


def _refusal(reason: str, fields: dict[str, object]) -> UserError | StageError:
    if fields["device_full"]:
        return NoRoomError(reason)
    return UserError(reason) if fields["user_fault"] else StageError(reason)


def _send(link: socket.socket, frame: Frame, parts: Sequence[Buffer]) -> None:
    try:
        send(link, frame, parts)
    except OSError as error:
        raise _ProcessLostError(str(error)) from error


def _received(receiver: Receiver) -> tuple[Frame, memoryview]:
    try:
        return receiver.receive()
    except (OSError, FrameError) as error:
        raise _ProcessLostError(str(error)) from error


def _call(frame: Frame, content: memoryview, dtype: str) -> LayerCall:
    try:
        return read_call(frame, content, dtype)
    except (FrameError, struct.error) as error:
        raise _ProcessLostError(str(error)) from error


def _attended(link: socket.socket, call: LayerCall, attend: Attend) -> Elements:
    """Attention to a call. What fails here leaves a pass that waits: its process goes."""
    try:
        return np.ascontiguousarray(attend(call))
    except Exception:
        link.close()
        raise
