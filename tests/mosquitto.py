"""Debian's Mosquitto as an operator runs it, with the rules that docs/deploying.md prints."""

import base64
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from molink.control.addresses import TlsFiles
from tests.end_to_end.command_line import READY_WITHIN_S

GUIDE = Path(__file__).parents[1] / "docs" / "deploying.md"
ITERATIONS = 1
"""Of PBKDF2: a test's password need not be slow to guess."""


def installed_mosquitto() -> str:
    """Path of the program; the test is skipped where there is none. Debian puts it where a user's
    PATH does not lead."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    return found or pytest.skip("mosquitto is not installed: apt install mosquitto")


def documented_rules() -> str:
    """The rules that an operator is told to give a Mosquitto."""
    section = GUIDE.read_text().partition("\n## Another broker")[2].partition("\n## ")[0]
    (rules,) = re.findall(r"^```\n(user coordinator\n.*?)^```", section, re.DOTALL | re.MULTILINE)
    return rules


def password_hash(password: str) -> str:
    """Line's end in a file of users: $7$ITERATIONS$SALT$HASH, PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS, 64)
    texts = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(("", "7", str(ITERATIONS), *texts))


@dataclass
class Mosquitto:
    """A broker that the coordinator did not start, and that forgets everything when it ends, unless
    it `remembers`."""

    program: str
    folder: Path
    port: int
    user: str = "club"
    password: str = "short"
    nodes: dict[str, str] = field(default_factory=dict)
    """Id of each node that may enter, to its password."""
    remembers: bool = False
    tls: TlsFiles | None = None
    readable: str = "molink/v1/#"
    """What the coordinator's user may read and write."""
    process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"mqtt://{self.user}:{self.password}@127.0.0.1:{self.port}"

    @property
    def nodes_file(self) -> Path:
        """Users of the nodes, as `--broker-users` takes them."""
        return self.folder / "nodes"

    def start(self):
        self._write_users()
        self.nodes_file.write_text("".join(f"{name}:{self.nodes[name]}\n" for name in self.nodes))
        self.nodes_file.chmod(0o600)
        rules = documented_rules().replace("user coordinator", f"user {self.user}")
        rules = rules.replace("topic readwrite molink/v1/#", f"topic readwrite {self.readable}")
        (self.folder / "rules").write_text(rules)
        config = self.folder / "mosquitto.conf"
        config.write_text("\n".join([*self._settings(), ""]))
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([self.program, "-c", str(config)], stderr=log)
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._listens() and time.monotonic() < deadline:
            time.sleep(0.02)

    @contextmanager
    def running(self) -> Iterator["Mosquitto"]:
        """Run it until the block is left, whatever happens there."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def take_users(self):
        """Have it read its users anew: those who are none any more lose their connections."""
        self._write_users()
        told, deadline = self._reloads(), 0.0
        while self._reloads() == told:
            if time.monotonic() > deadline:  # It overlooks a signal that comes while it reads.
                self.process.send_signal(signal.SIGHUP)
                deadline = time.monotonic() + 1
            time.sleep(0.001)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """End it in order, so that it writes down what it remembers."""
        while self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)

    def forget(self):
        """Lose what was written down; it does not run."""
        (self.folder / "mosquitto.db").unlink()

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _write_users(self):
        known = {self.user: self.password, **self.nodes}
        users = self.folder / "users.new"
        users.write_text("".join(f"{name}:{password_hash(known[name])}\n" for name in known))
        users.chmod(0o600)
        users.replace(self.folder / "users")  # It may be reading: half a file ends connections.

    def _settings(self) -> list[str]:
        lines = [f"listener {self.port} 127.0.0.1"]
        if self.tls is not None:
            lines += [f"certfile {self.tls.certificate}", f"keyfile {self.tls.key}"]
        lines += ["user root"] if os.geteuid() == 0 else []
        lines += [f"password_file {self.folder / 'users'}", f"acl_file {self.folder / 'rules'}"]
        lines += ["allow_anonymous false", "use_username_as_clientid true"]
        lines += ["set_tcp_nodelay true", f"persistence {str(self.remembers).lower()}"]
        return lines + ([f"persistence_location {self.folder}/"] if self.remembers else [])

    def _reloads(self) -> int:
        return self._log.read_bytes().count(b"Reloading config.")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
