"""A reader of the pages, who types what they say into a shell of their own.

Their home and folder are empty at first, what they export stays exported, and a program that goes
on is left running until the same terminal is needed again. What a reader fills in is filled in
here: names in capitals, and ports, which are free ones of loopback.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.docs_site.pages import ROOT
from tests.end_to_end.clusters import Program, free_ports

WITHIN_S = 180

TERMINALS = {
    "molink serve": ("server", "ready http"),
    "molink up": ("server", "molink agent join"),
    "molink agent join": ("agent", ""),
    "molink agent run": ("agent", ""),
    "molink relay": ("relay", "ready relay"),
    "molink dashboard --url": ("dashboard", ""),
}
"""Of programs that go on: the terminal in which they run, and how the line begins that says so."""

SHIM = '#!/bin/sh\nexec "{python}" {module} "$@"\n'


@dataclass
class Reader:
    """Somebody at a terminal, with the ports of their cluster."""

    home: Path
    stack: ExitStack
    ports: list[int] = field(default_factory=lambda: free_ports(5))
    filled_in: dict[str, str] = field(default_factory=dict)
    running: dict[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        for name in ("docs", "deploy", "tools"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.home / "bin").mkdir()
        for name, module in (("molink", "-m molink.cli.main"), ("python", ""), ("python3", "")):
            shim = self.home / "bin" / name
            shim.write_text(SHIM.format(python=sys.executable, module=module))
            shim.chmod(0o755)
        (self.home / ".curlrc").write_text("fail-with-body\n")
        self.variables.write_text("umask 022\n")

    @property
    def folder(self) -> Path:
        return self.home / "folder"

    @property
    def variables(self) -> Path:
        """What has been exported, as a script."""
        return self.home / "variables"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def typed(self, line: str) -> str:
        """The line as the reader types it, with what is to be filled in."""
        line = re.sub(r"(?:127\.0\.0\.1|\bHOST):8000", self.url.removeprefix("http://"), line)
        line = line.replace("RELAY_HOST:8002", f"127.0.0.1:{self.ports[-1]}")
        for name, value in self.filled_in.items():
            line = re.sub(rf"\b{name}\b", value, line)
        for start, more in self._moved().items():
            if line.startswith(start):
                line = f"{re.sub(r' --port 800[02]', '', line)} {more}"
        line = re.sub(r"^sh deploy/", f"sh {ROOT}/deploy/", line)
        return re.sub(
            r"^make ", f"make -C {ROOT} -o {sys.prefix}/.installed VENV={sys.prefix} ", line
        )

    def _moved(self) -> dict[str, str]:
        """Options that take a program to free ports of loopback."""
        api, broker, relay, agents, own_relay = self.ports
        others = f"--broker-port {broker} --relay-port {relay} --agents-port {agents}"
        return {
            "molink up": f"--host 127.0.0.1 --port {api} {others}",
            "molink serve": f"--port {api}",
            "molink relay": f"--host 127.0.0.1 --port {own_relay}",
            "molink agent join": "--listen 127.0.0.1 --no-map-ports",
            "molink generate": f"--url {self.url}",
        }

    def type(self, line: str) -> str:
        """What a command prints; it must end well."""
        typed = self.typed(line)
        script = f". {self.variables}; {typed}\nstatus=$?; (export -p; umask -p) > {self.variables}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{script}; exit $status"],
            **self._place(),
            stderr=subprocess.STDOUT,
            timeout=WITHIN_S,
        )
        assert done.returncode == 0, f"{typed}\nends with {done.returncode}: {done.stdout}"
        return done.stdout

    def start(self, line: str) -> Program:
        """A program that goes on, as soon as it says that it is up."""
        terminal, up = next(told for start, told in TERMINALS.items() if line.startswith(start))
        self.interrupt(terminal)
        script = f". {self.variables}; exec {self.typed(line)}"
        process = subprocess.Popen(
            ["bash", "-c", script],
            **self._place(),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        program = self.running[terminal] = Program(process)
        self.stack.callback(end_family, process)
        program.line(up)
        return program

    def interrupt(self, terminal: str) -> None:
        """Ctrl-C in that terminal: what runs there ends in order."""
        if program := self.running.pop(terminal, None):
            program.process.send_signal(signal.SIGINT)
            assert program.ended() == 0, program.lines

    def _place(self) -> dict:
        kept = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "TERM": "dumb"}
        path = f"{self.home / 'bin'}:{os.environ['PATH']}"
        caches = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        env = {"HOME": str(self.home), "PATH": path, "XDG_CACHE_HOME": caches, **kept}
        return {"cwd": self.folder, "env": env, "stdout": subprocess.PIPE, "text": True}


def end_family(process: subprocess.Popen) -> None:
    """Leave nothing of a program behind, whatever has become of the test."""
    if process.poll() is None:
        family = [
            *psutil.Process(process.pid).children(recursive=True),
            psutil.Process(process.pid),
        ]
        for one in family:
            one.kill()
        psutil.wait_procs(family, timeout=10)
        process.wait()


def is_a_program_that_goes_on(line: str) -> bool:
    return line.startswith(tuple(TERMINALS))
