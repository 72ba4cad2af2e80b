"""Entry point of what forks a stage's lenders: `python -m molink.lender.fork_server FD`.

It has imported what a lender needs, which takes seconds of a processor, and a fork of it some
milliseconds: so who waits for another lender does not wait for torch. Lenders share its memory. It
computes nothing, so that it has one thread and may fork at any time.

A stage holds the other end of its socket; when that closes this process ends, and its lenders with
it. A request with a socket is for a lender at the other end of that; one without ends a lender,
also where it stands still.
"""

import argparse
import gc
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from molink.quick_imports import quick_imports

with quick_imports():
    from molink.lender.lender_process import lend_over
    from molink.lender.protocol import FORK_REQUEST


class ForkServer:
    """Lenders of one stage, or what else serves a stage's socket, children of this process."""

    def __init__(
        self, control: socket.socket, serve: Callable[[int, int], None] = lend_over
    ) -> None:
        """`serve`: what a child does with the descriptor of its socket, and so many threads."""
        self._control, self._serve = control, serve
        self._pids: dict[int, int] = {}
        """Processes by their lenders' numbers, until they are waited for: until then no other
        process has their ids."""

    def run(self) -> None:
        """Fork and end lenders until the stage closes the link."""
        while True:
            message, links, _, _ = socket.recv_fds(self._control, FORK_REQUEST.size, 1)
            if not message:
                break
            number, threads = FORK_REQUEST.unpack(message)
            self._forget_ended()
            if links:
                self._pids[number] = self._fork(links[0], threads)
            else:
                self._end(number)
        for number in [*self._pids]:
            self._end(number)

    def _fork(self, link: int, threads: int) -> int:
        pid = os.fork()
        if pid:
            os.close(link)
            return pid
        code = 1
        try:
            self._control.close()
            self._serve(link, threads)
            code = 0
        finally:
            os._exit(code)

    def _end(self, number: int) -> None:
        if (pid := self._pids.get(number)) is not None:
            os.kill(pid, signal.SIGKILL)

    def _forget_ended(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._pids = {one: other for one, other in self._pids.items() if other != pid}


def main() -> None:
    """Serve the stage at the other end of an inherited socket."""
    parser = argparse.ArgumentParser(prog="molink.lender.fork_server")
    parser.add_argument("control", type=int, help="Descriptor of the socket.")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # A collection in a lender would write to, and so copy, all that it shares.
    with socket.socket(fileno=parser.parse_args().control) as control:
        ForkServer(control).run()


if __name__ == "__main__":
    main()
