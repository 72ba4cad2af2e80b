"""Entry point of a stage process: `python -m molink.runtime.stage_main`.

The same for a stage of a local ring and for one that a volunteer's agent supervises: commands come
on standard input, facts leave on standard output, and a closed input ends the process at once.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before torch is imported: a spinning OpenMP thread costs 8 ms per region on a shared core.

import queue
import signal
import sys
import threading
import traceback
from typing import BinaryIO

from molink.errors import MolinkError, StageError, UserError
from molink.runtime.supervision import (
    Command,
    Fact,
    JoinRing,
    LoadStage,
    StageFailed,
    decode_line,
    encode_line,
)

__all__ = ["main"]

EXIT_FAILED = 3
"""The process reported StageFailed and ended."""


class Supervisor:
    """The other end of our standard streams."""

    def __init__(self, commands: BinaryIO, facts: BinaryIO) -> None:
        self._commands = commands
        self._facts = facts
        self._queue: queue.SimpleQueue[Command | Fact] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def expect_load(self) -> LoadStage:
        """The first command."""
        command = self._queue.get()
        assert isinstance(command, LoadStage), f"expected LoadStage, got {command}"
        return command

    def expect_join(self) -> JoinRing:
        """The second and last command."""
        command = self._queue.get()
        assert isinstance(command, JoinRing), f"expected JoinRing, got {command}"
        return command

    def tell(self, fact: Fact) -> None:
        """Report to the supervisor."""
        self._facts.write(encode_line(fact))
        self._facts.flush()

    def _read(self) -> None:
        for line in self._commands:
            self._queue.put(decode_line(line))
        os._exit(0)


def _private_stdout() -> BinaryIO:
    """Our own handle on standard output; what libraries print goes to standard error instead."""
    facts = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return facts


def _failure(error: BaseException) -> StageFailed:
    if isinstance(error, MolinkError):
        return StageFailed(str(error), isinstance(error, UserError))
    traceback.print_exception(error, file=sys.stderr)
    return StageFailed(f"A stage stopped on {type(error).__name__}: {error}", user_fault=False)


def main() -> None:
    """Serve as a stage until the supervisor closes our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = Supervisor(sys.stdin.buffer, _private_stdout())
    try:
        load = supervisor.expect_load()
        from molink.runtime.stage_start import start_stage

        loop = start_stage(load, supervisor.tell, supervisor.expect_join)
        loop.run()
    except Exception as error:
        supervisor.tell(_failure(error))
        sys.stdout.flush()
        os._exit(EXIT_FAILED)
    raise StageError("a stage's loop ended")


if __name__ == "__main__":
    main()
