"""Start of a lender by the stage that it lends to."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from molink.lender.client import LenderClient
from molink.lender.lan.lan_lender import lan_lender
from molink.lender.protocol import FORK_REQUEST
from molink.stage_protocol.messages import StageWork


def lender_starts() -> Callable[[StageWork], LenderClient]:
    """How a stage starts its lenders: in the LAN where its work has a lease, else in its own PC, as
    forks on Linux; other systems' libraries do not promise to survive a fork."""
    start = ForkedLenders().start if sys.platform == "linux" else start_lender

    def started(work: StageWork) -> LenderClient:
        lease = work.lan_lease
        return start(work.threads) if lease is None else lan_lender(lease)

    return started


def start_lender(threads: int = 1) -> LenderClient:
    """A lender of this PC with so many threads, which ends when the client's link does."""
    ours, theirs = socket.socketpair()
    with theirs:
        arguments = ("--threads", str(threads))
        process = started_process("molink.lender.lender_process", theirs, threads, arguments)
    return LenderClient(ours, process=process)


@dataclass(slots=True)
class ForkedLenders:
    """Lenders of one stage, forked by a process that has imported torch before: so one that is lost
    is replaced in some milliseconds. From any thread."""

    _server: socket.socket | None = field(init=False, default=None)
    """Link to that process, once there is one."""
    _numbers: int = field(init=False, default=0)
    """Lenders that were asked for."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def start(self, threads: int = 1) -> LenderClient:
        """A lender with so many threads, which ends when the client's link does, or the stage's
        process. Raises OSError where no process is to be had."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                process = self._forked(theirs, threads)
            except OSError:  # The server has gone; the lenders that it forked go on.
                self._server = None
                process = self._forked(theirs, threads)
        return LenderClient(ours, process=process)

    def _forked(self, link: socket.socket, threads: int) -> "ForkedLender":
        if self._server is None:
            self._server, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with control:
                started_process("molink.lender.fork_server", control, threads)
        self._numbers += 1
        request = FORK_REQUEST.pack(self._numbers, threads)
        socket.send_fds(self._server, [request], [link.fileno()])
        return ForkedLender(self._server, self._numbers)


@dataclass(frozen=True, slots=True)
class ForkedLender:
    """Process of a lender that the stage's server has forked, or will."""

    server: socket.socket
    number: int

    def kill(self) -> None:
        """End it, also where it stands still; fine for one that has ended, or whose server has."""
        with suppress(OSError):
            self.server.send(FORK_REQUEST.pack(self.number, 0))


def started_process(
    module: str, link: socket.socket, threads: int, arguments: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """A process of this module with one end of a link, the descriptor of which it is told."""
    return subprocess.Popen(
        [sys.executable, "-m", module, str(link.fileno()), *arguments],
        pass_fds=[link.fileno()],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
