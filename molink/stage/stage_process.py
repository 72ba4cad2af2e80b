"""Entry point of a stage's worker process: `python -m molink.stage.stage_process`.

The same for a stage of a local ring and for one that a volunteer's agent supervises: commands come
on standard input, facts leave on standard output, and a closed input ends the process at once.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before torch is imported: a spinning OpenMP thread costs 8 ms per region on a shared core.

import argparse
import logging
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from molink.engine_protocol.engine import Engine
from molink.errors import (
    DeviceMemoryError,
    LinkLostError,
    MolinkError,
    NoRoomError,
    StageError,
    UserError,
)
from molink.logs import LOG_FORMATS, set_up_logs
from molink.printable import PrintableStream
from molink.quick_imports import quick_imports
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import (
    BetweenSteps,
    Borrow,
    EnterRing,
    Fact,
    FollowRing,
    HoldLinks,
    JoinRing,
    LoadProgressed,
    LoadStage,
    LoopCommand,
    MovePath,
    OutgoingLink,
    RoomCommand,
    SetAllowed,
    SetCacheRam,
    SetPair,
    SetRoom,
    SetShadow,
    SetUploadCap,
    StageFailed,
    Steered,
    Steering,
    decode_line,
    encode_line,
)

log = logging.getLogger("molink.stage")  # Not by __name__, which is __main__ here.

EXIT_FAILED = 3
"""The process reported StageFailed and ended."""

FACTS_WAITING_MAX = 256
"""Facts that the supervisor has not read; of more the oldest are dropped. A stage has a handful to
report between two of its health reports, of which only the latest waits."""

FLUSH_WITHIN_S = 2.0
"""Seconds that the last fact is waited for: a supervisor that reads at all reads within that."""


class FactOutlet:
    """Thread that writes facts to the supervisor, so that nobody who reports one ever waits.

    A supervisor that reads nothing for a minute, suspended or busy, fills a pipe of 64 KB with
    health reports. A loop that wrote them itself would stand then, and its ring with it.
    """

    def __init__(self, facts: BinaryIO) -> None:
        self._facts = facts
        self._waiting: deque[tuple[type[Fact], bytes]] = deque(maxlen=FACTS_WAITING_MAX)
        self._is_writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="facts", daemon=True).start()

    def put(self, fact: Fact) -> None:
        """Let a fact leave; health or progress takes the place of what still waits of the same."""
        line = encode_line(fact)
        with self._changed:
            if isinstance(fact, StageHealth | LoadProgressed):
                outdated = [one for one in self._waiting if one[0] is type(fact)]
                for one in outdated:
                    self._waiting.remove(one)
            self._waiting.append((type(fact), line))
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all has left, but not for ever."""
        with self._changed:
            self._changed.wait_for(self._is_empty, FLUSH_WITHIN_S)

    def _is_empty(self) -> bool:
        return not self._waiting and not self._is_writing

    def _write(self) -> None:
        try:
            while True:
                self._facts.write(self._next_line())
                self._facts.flush()
        except OSError:
            return  # The supervisor is gone, and our input with it: that ends the process.

    def _next_line(self) -> bytes:
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._waiting))
            self._is_writing = True
            return self._waiting.popleft()[1]


class SupervisorPipe:
    """The other end of our standard streams.

    LoadStage and EnterRing come in this order, and are waited for; EnterRing comes again when the
    ring goes on without a stage that it has lost, and LoadStage before it where this one takes the
    lost layers beside its own. What steers a running
    stage is carried out by the thread that reads it; what comes before there are links to steer is
    kept, the last of each kind.
    """

    def __init__(self, commands: BinaryIO, facts: BinaryIO) -> None:
        self._commands = commands
        self._facts = FactOutlet(facts)
        self._queue: queue.SimpleQueue[LoadStage | EnterRing] = queue.SimpleQueue()
        self._steering_lock = threading.Lock()
        self._early: dict[object, Steering] = {}
        self._next: list[LoadStage | EnterRing] = []
        self._rooms: dict[type[RoomCommand], RoomCommand] = {}
        self._rooms_lock = threading.Lock()
        self._handle: Steered | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def expect_load(self) -> LoadStage:
        """Wait for the first command, which says what to load."""
        command = self._queue.get()
        assert isinstance(command, LoadStage), f"expected LoadStage, got {command}"
        return command

    def expect_join(self) -> EnterRing:
        """Wait for the second command, which says which ring to join."""
        command = self._queue.get()
        assert isinstance(command, EnterRing), f"expected EnterRing, got {command}"
        return command

    def next_command(self) -> BetweenSteps | None:
        """The next command about the ring's next epoch, of an epoch to join only the last; or else
        one about the stage's room, of each kind the last."""
        while not self._queue.empty():
            if self._next and isinstance(self._next[-1], EnterRing):
                self._next.pop()
            self._next.append(self._queue.get())
        if self._next:
            return self._next.pop(0)
        with self._rooms_lock:
            return self._rooms.popitem()[1] if self._rooms else None

    def steer(self, handle: Steered) -> None:
        """Call `handle` from now on with each command that steers a running stage, and when
        `next_command` has one."""
        with self._steering_lock:
            self._handle = handle
            for command in self._early.values():
                handle(command)

    def report(self, fact: Fact) -> None:
        """Report to the supervisor, at once; from any thread."""
        self._facts.put(fact)

    def flush(self) -> None:
        """Wait until what was reported has left, before the process ends; not for ever."""
        self._facts.flush()

    def _read(self) -> None:
        """End the process when the input closes, or brings what is no command."""
        code = EXIT_FAILED
        try:
            for line in self._commands:
                self._take(line)
            code = 0
        except Exception:
            log.exception("A stage cannot read its commands")
        finally:
            os._exit(code)

    def _take(self, line: bytes) -> None:
        match decode_line(line):
            case LoadStage() | JoinRing() | FollowRing() as command:
                self._queue.put(command)
                is_first = isinstance(command, JoinRing) and command.resume is None
                if self._handle is not None and not is_first:
                    self._handle(command)
            case SetRoom() | Borrow() as command:
                with self._rooms_lock:
                    self._rooms[type(command)] = command
                if self._handle is not None:
                    self._handle(command)
            case (
                SetAllowed()
                | MovePath()
                | SetUploadCap()
                | SetCacheRam()
                | SetPair()
                | SetShadow()
                | HoldLinks() as steering
            ):
                self._take_steering(steering)
            case fact:
                raise StageError(f"a supervisor sends commands, not {type(fact).__name__}")

    def _take_steering(self, command: Steering) -> None:
        with self._steering_lock:
            if self._handle is not None:
                self._handle(command)
                return
            subject = command.link if isinstance(command, MovePath) else type(command)
            self._early[subject] = command


def borrowing(
    engine: Engine, next_command: Callable[[], BetweenSteps | None]
) -> Callable[[], LoopCommand | None]:
    """The commands of a stage's loop but for those to borrow, which its engine takes meanwhile."""

    def next_of_loop() -> LoopCommand | None:
        while isinstance(command := next_command(), Borrow):
            engine.borrow(command)
        return command

    return next_of_loop


def _private_stdout() -> BinaryIO:
    """Our own handle on standard output; what libraries print goes to standard error instead."""
    facts = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return facts


def _failure(error: BaseException) -> StageFailed:
    if isinstance(error, LinkLostError):
        link: OutgoingLink = "next" if error.link == "next" else "coordinator"
        return StageFailed(str(error), user_fault=False, link=link)
    if isinstance(error, MolinkError):
        is_full = isinstance(error, DeviceMemoryError | NoRoomError)
        return StageFailed(str(error), isinstance(error, UserError), device_full=is_full)
    log.error("A stage stops", exc_info=error)
    return StageFailed(f"A stage stopped on {type(error).__name__}: {error}", user_fault=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="molink.stage.stage_process")
    parser.add_argument("event_log", nargs="?", type=Path, help="Where to write what it is told.")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text")
    return parser.parse_args()


def main() -> None:
    """Serve as a stage until the supervisor closes our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr = cast(TextIO, PrintableStream(sys.stderr))  # Libraries quote configs of strangers.
    arguments = _arguments()
    set_up_logs(arguments.log_format, sys.stderr)
    supervisor = SupervisorPipe(sys.stdin.buffer, _private_stdout())
    try:
        with quick_imports():
            # Seconds, with torch; weights may come meanwhile.
            from molink.compute.client import computing_here
            from molink.engine.local_engine import LocalEngine
            from molink.lender.starting import lender_starts
            from molink.serving.served_model import load_tokenizer
            from molink.stage.start import start_stage

        load = supervisor.expect_load()
        engine = LocalEngine(cache(load_tokenizer), lender_starts(), computing_here())
        loop = start_stage(
            engine,
            LocalEngine,
            load,
            report=supervisor.report,
            expect_join=supervisor.expect_join,
            next_command=borrowing(engine, supervisor.next_command),
            steer=supervisor.steer,
            event_log=arguments.event_log,
        )
        loop.run()
    except Exception as error:
        supervisor.report(_failure(error))
        supervisor.flush()
        sys.stdout.flush()
        os._exit(EXIT_FAILED)
    raise StageError("a stage's loop ended")


if __name__ == "__main__":
    main()
