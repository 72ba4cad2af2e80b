"""How a fork is asked for: a message with three streams; its process id and exit code return."""

import json
import os
import socket
import sys
from pathlib import Path

ADDRESS = "MOLINK_TESTS_FORK_SERVER"
"""Variable of the environment: where the server of stages and probes is asked."""

CHANGES = "MOLINK_TESTS_FORK_CHANGES"
"""Variable of the environment: Python that a fork of a stage or probe runs first."""

OWN_NAME = Path("/proc/self/comm")
"""A process that stands for a fork is named by the fork's process id."""

MESSAGE_BYTES_MAX = 2**17
"""Arguments and environment of one program; Linux passes no more to a program."""


def fork_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def connection(
    server: str, streams: list[int], module: str, *arguments: str, **more
) -> socket.socket:
    """Have the module's `main` run in a fork. The fork ends when the connection is closed."""
    asking = fork_socket()
    asking.connect("\0" + server)
    wanted = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "changes": "",
        "own_session": False,
        **more,
    }
    socket.send_fds(asking, [json.dumps(wanted).encode()], streams)
    return asking


def number_from(asking: socket.socket) -> int:
    """The fork's process id, then its exit code; a server that is gone is a failure."""
    return int(asking.recv(16) or b"1")


def fork_of(pid: int) -> int:
    """Process id of the fork for which this process stands, or its own."""
    name = (Path("/proc") / str(pid) / OWN_NAME.name).read_text().strip()
    return int(name) if name.isdecimal() else pid


def stand_for(server: str, module: str, *arguments: str):
    """Have the module's `main` run in a fork which has our streams, and end as it does."""
    changes = os.environ.get(CHANGES, "")
    asking = connection(server, [0, 1, 2], module, *arguments, changes=changes, own_session=True)
    os.close(0)
    os.close(1)
    OWN_NAME.write_text(str(number_from(asking)))
    code = number_from(asking)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
