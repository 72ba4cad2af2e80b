"""A fork of `molink` with the few methods of `subprocess.Popen` that these tests use."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack

from tests.end_to_end.forked.asking import connection, number_from


class ForkedProcess:
    """A program that runs, killed with this object; its standard input is ours."""

    def __init__(
        self,
        server: str,
        *arguments: str,
        changes: str,
        environment: Mapping[str, str],
        stderr: int = subprocess.PIPE,
    ):
        """`stderr` is `subprocess.PIPE`, or `subprocess.STDOUT` for both in one stream."""
        with ExitStack() as stack:
            self.stdout, out = _pipe(stack)
            self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _pipe(stack)
            self._asked: socket.socket = connection(
                server,
                [0, out, err],
                "molink.cli.main",
                *arguments,
                changes=changes,
                environment=dict(environment),
            )
        self.pid = number_from(self._asked)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or the signal's number below zero; None: it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._asked.settimeout(timeout)
            try:
                self.returncode = number_from(self._asked)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("molink", timeout or 0.0) from None
            self._asked.close()
        return self.returncode

    def send_signal(self, number: signal.Signals | int):
        if self.poll() is None:
            os.kill(self.pid, number)


def _pipe(stack: ExitStack):
    """The end from which text is read, and the other one, which is closed once it is passed on."""
    read, write = os.pipe()
    stack.callback(os.close, write)
    return os.fdopen(read, encoding="utf-8"), write
