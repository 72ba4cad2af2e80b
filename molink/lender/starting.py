"""Start of a lender's process by the stage that it lends to."""

import os
import socket
import subprocess
import sys

from molink.lender.client import LenderClient


def start_lender(threads: int = 1) -> LenderClient:
    """A lender of this PC with so many threads, which ends when the client's link does."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "molink.lender.lender_process", str(theirs.fileno())]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    return LenderClient(ours, process=process)
