"""Stages that start at once: forks of one process that has imported what a stage needs.

Importing torch and a model's code takes a stage five seconds of a processor, and the tests of this
folder start more than a hundred stages. So each worker of the tests has a fork server that imports
once. In a stage's place `molink` starts a small process, which hands its standard streams, its
arguments and its environment to the server: the fork computes, the small process is the one that is
seen, killed and waited for, and each ends with the other. A test of how a stage starts or ends, or
of one that hangs, starts it as users do.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from molink.quick_imports import quick_imports

MODULE = "tests.end_to_end.forked_stages"
ADDRESS = "MOLINK_TESTS_FORK_SERVER"
"""Variable of the environment: where the server is asked."""

MESSAGE_BYTES_MAX = 2**17
"""Arguments and environment of one stage; Linux passes no more to a program."""


@cache
def fork_server() -> dict[str, str]:
    """Environment of those who ask the server of this process, which ends with it."""
    name = f"molink-tests-{os.getpid()}"
    with _socket() as listener:
        listener.bind("\0" + name)
        listener.listen()
        serve = f"from {MODULE} import serve; serve({listener.fileno()})"
        command = [sys.executable, "-c", serve]
        _running.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        )
    return {ADDRESS: name}


_running: list[subprocess.Popen] = []
"""Held for their input, which closes when this process ends."""


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@dataclass
class Forks:
    """Stages that run, each with the connection of who asked for it."""

    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    alive: set[int] = field(default_factory=set)

    def run(self):
        """Until our input closes."""
        self.selector.register(self.listener, selectors.EVENT_READ, self._start)
        self.selector.register(0, selectors.EVENT_READ, self._end)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj in self.selector.get_map():  # Not ended by one before it.
                    key.data()

    def _start(self):
        asking, _ = self.listener.accept()
        message, streams, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 3)
        pid = os.fork()
        if pid == 0:
            be_stage(streams, **json.loads(message))
        for stream in streams:
            os.close(stream)
        self.alive.add(pid)
        ended = os.pidfd_open(pid)
        self.selector.register(
            ended, selectors.EVENT_READ, partial(self._ended, pid, ended, asking)
        )
        self.selector.register(asking, selectors.EVENT_READ, partial(self._gone, pid, asking))

    def _gone(self, pid: int, asking: socket.socket):
        """Who asked was killed."""
        self.selector.unregister(asking)
        os.kill(pid, signal.SIGKILL)

    def _ended(self, pid: int, ended: int, asking: socket.socket):
        _, status = os.waitpid(pid, 0)
        self.alive.remove(pid)
        self.selector.unregister(ended)
        os.close(ended)
        if asking in self.selector.get_map():
            self.selector.unregister(asking)
            asking.send(str(os.waitstatus_to_exitcode(status)).encode())
        asking.close()

    def _end(self):
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def be_stage(streams: list[int], arguments: list[str], environment: dict[str, str], directory: str):
    """Be the stage's process; does not return."""
    from molink.stage import stage_process

    try:
        os.setsid()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        sys.argv = [stage_process.__name__, *arguments]
        stage_process.main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def serve(listener: int):
    """Import, then fork for everyone who asks."""
    with quick_imports():
        for module in (
            "molink.engine.local_engine",
            "molink.stage.start",
            "transformers.models.llama.modeling_llama",
        ):
            import_module(module)
    Forks(socket.socket(fileno=listener)).run()


def main():
    """Have a stage forked, and end as it does."""
    asking = _socket()
    asking.connect("\0" + os.environ[ADDRESS])
    wanted = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
    }
    socket.send_fds(asking, [json.dumps(wanted).encode()], [0, 1, 2])
    os.close(0)
    os.close(1)
    code = int(asking.recv(16) or b"1")
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
