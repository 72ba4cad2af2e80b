"""A process that has imported what a program needs, and forks for everyone who asks.

Importing torch and a model's code takes a stage five seconds of a processor, and importing a
coordinator takes `molink` two; the tests of this folder start some hundreds of them. So each worker
of the tests has two servers that import once: one for stages and probes, one for `molink`. A fork
runs the program's own `main` with its own arguments, environment, directory and streams. A test of
how a program starts or ends, or of one that hangs, starts it as users do.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module

from molink.quick_imports import quick_imports
from tests.end_to_end.forked.asking import MESSAGE_BYTES_MAX, fork_socket

STAGES = (
    "molink.engine.local_engine",
    "molink.stage.stage_process",
    "molink.engine.local_engine",
    "molink.stage.start",
    "transformers.models.llama.modeling_llama",
    "tests.end_to_end.forked.warm",
)
"""Modules that a stage and a probe import, torch among them."""

COMMANDS = (
    *(
        "molink.cli.main",
        "molink.cli.client.chat",
        "molink.cli.client.bench",
        "molink.cli.members",
        "molink.cli.own_server",
    ),
    *("molink.cli.relay", "molink.cli.serve", "molink.cli.up"),
    *("molink.api", "molink.agents_api.app", "molink.coordinator.start"),
    *("molink.coordinator.local.start", "molink_agent.cli", "molink_agent.daemon.process"),
)
"""Modules that `molink` imports when it serves, joins or gives an order, without torch."""


@cache
def server_of(*modules: str) -> str:
    """Name of the server that has imported these; it ends with this process."""
    name = f"molink-tests-{os.getpid()}-{len(_running)}"
    with fork_socket() as listener:
        listener.bind("\0" + name)
        listener.listen()
        serve = f"from {__name__} import serve; serve({listener.fileno()}, {modules})"
        command = [sys.executable, "-c", serve]
        _running.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        )
    return name


_running: list[subprocess.Popen] = []
"""Held for their input, which closes when this process ends."""


@dataclass
class Forks:
    """Programs that run, each with the connection of who asked for it."""

    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    alive: set[int] = field(default_factory=set)

    def run(self) -> Callable[[], None]:
        """What a fork has to do; the server itself ends when its input closes."""
        self.selector.register(self.listener, selectors.EVENT_READ, self._start)
        self.selector.register(0, selectors.EVENT_READ, self._end)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj not in self.selector.get_map():
                    continue  # Ended by one before it.
                if program := key.data():
                    return program

    def _start(self) -> Callable[[], None] | None:
        asking, _ = self.listener.accept()
        message, streams, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 3)
        pid = os.fork()
        if pid == 0:
            self.listener.close()
            return partial(be, streams, **json.loads(message))
        for stream in streams:
            os.close(stream)
        self.alive.add(pid)
        ended = os.pidfd_open(pid)
        self.selector.register(
            ended, selectors.EVENT_READ, partial(self._ended, pid, ended, asking)
        )
        self.selector.register(asking, selectors.EVENT_READ, partial(self._gone, pid, asking))
        tell(asking, pid)
        return None

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
            tell(asking, os.waitstatus_to_exitcode(status))
        asking.close()

    def _end(self):
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def tell(asking: socket.socket, number: int):
    """Send it to who asked, unless that process has just ended."""
    with contextlib.suppress(OSError):
        asking.send(str(number).encode())


def be(
    streams: list[int],
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
    changes: str,
    own_session: bool,
):
    """Be a program's process: run the module's `main`."""
    if own_session:
        os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = [module, *arguments]
    exec(changes, {})
    import_module(module).main()


def serve(listener: int, modules: tuple[str, ...]):
    """Import, then fork for everyone who asks."""
    with quick_imports():
        for module in modules:
            import_module(module)
    program = Forks(socket.socket(fileno=listener)).run()
    program()
