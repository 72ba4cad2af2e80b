"""The files that Mosquitto reads: its configuration, its users, and what they may do.

Everything lies in one directory that no other user can enter. Passwords are random tokens, so their
hashes are not stretched: PBKDF2 with one iteration. Mosquitto checks every connected client again
at each reload, and a thousand of them must not take it a second.
"""

import base64
import hashlib
import logging
import os
import pwd
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.broker.permissions import mosquitto_rules

__all__ = ["MosquittoFiles", "password_hash", "service_account"]

log = logging.getLogger(__name__)

_ITERATIONS = 1
_SALT_BYTES = 12
_PACKET_BYTES_MAX = 2**20
"""The coordinator sends the config.json of its model; what a node says, 30 KB at most, has no limit
of its own here. The coordinator shuts out who sends more."""
_QUEUED_MAX = 20_000
"""Messages that wait for one client: the coordinator of a thousand nodes is sent six thousand
retained ones when it subscribes, and Mosquitto drops what exceeds this (1,000 by default)."""
_QUEUED_BYTES_MAX = 64 * 2**20
"""The same in bytes: ten times the states of a thousand nodes, and all that a node that does not
read can cost."""
_MEMORY_BYTES_MAX = 2**30
"""Of the process; beyond it new messages are refused, instead of this PC running out of memory. A
thousand nodes take a twentieth of it."""
_CONNECTIONS_MAX = 5000
"""As for the broker in our own process."""
_INFLIGHT_MAX = 1000
"""Of them sent and not yet acknowledged; 20 by default, which a long path slows to 20 per round
trip."""


@dataclass(slots=True)
class MosquittoFiles:
    """Directory of Mosquitto's configuration, users and rules."""

    directory: Path
    account: pwd.struct_passwd | None
    """The user that must be able to read it; None: our own."""
    tls: tuple[str, str] | None = field(default=None, repr=False)
    """Certificates and key as PEM; None: plain MQTT. As they were when the coordinator started: its
    own client accepts no other certificate, though the operator may have renewed it since."""
    hashes: dict[str, str] = field(default_factory=dict)
    """Username to password hash."""

    @property
    def config(self) -> Path:
        """Path of the configuration, for the command line."""
        return self.directory / "mosquitto.conf"

    def write_config(self, host: str, port: int) -> None:
        """Write everything but the users."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.chmod(0o700)
        if self.account is not None:
            os.chown(self.directory, self.account.pw_uid, self.account.pw_gid)
        lines = [f"listener {port} {host}", *self._tls_lines(), *self._common_lines()]
        self._write("mosquitto.conf", "\n".join(lines) + "\n")
        self._write("rules", mosquitto_rules())

    def write_users(self) -> None:
        """Write the users as they are now; a reader sees the old file or the new one."""
        lines = (f"{name}:{hashed}\n" for name, hashed in self.hashes.items())
        self._write("users", "".join(lines))

    def _tls_lines(self) -> list[str]:
        if self.tls is None:
            return []
        certificates, key = self.tls
        self._write("certificate.pem", certificates)
        self._write("key.pem", key)
        names = (("certfile", "certificate.pem"), ("keyfile", "key.pem"))
        return [f"{option} {self.directory / name}" for option, name in names]

    def _common_lines(self) -> list[str]:
        return [
            *(["user root"] if os.geteuid() == 0 and self.account is None else []),
            "allow_anonymous false",
            f"password_file {self.directory / 'users'}",
            f"acl_file {self.directory / 'rules'}",
            "use_username_as_clientid true",
            "set_tcp_nodelay true",
            "persistence false",
            f"max_connections {_CONNECTIONS_MAX}",
            f"max_packet_size {_PACKET_BYTES_MAX}",
            f"message_size_limit {_PACKET_BYTES_MAX}",
            f"max_queued_messages {_QUEUED_MAX}",
            f"max_queued_bytes {_QUEUED_BYTES_MAX}",
            f"memory_limit {_MEMORY_BYTES_MAX}",
            f"max_inflight_messages {_INFLIGHT_MAX}",
            "connection_messages false",
            "log_dest stderr",
            *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")),
        ]

    def _write(self, name: str, text: str) -> None:
        path = self.directory / f"{name}.new"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        path.replace(self.directory / name)


def password_hash(password: str) -> str:
    """As Mosquitto 2.0 keeps it: $7$ITERATIONS$SALT$HASH, PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS, 64)
    texts = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(("", "7", str(_ITERATIONS), *texts))


def service_account(directory: Path) -> pwd.struct_passwd | None:
    """Whom a broker started by root should run as: `mosquitto`, if that user can get to
    `directory`.

    None when we are not root, and also when there is no such user or a directory above is closed to
    it: then the broker runs as root, with a warning.
    """
    if os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwnam("mosquitto")
    except KeyError:
        log.warning("there is no user mosquitto: the broker runs as root")
        return None
    above = [one for one in directory.resolve().parents if one.exists()]
    if all(_may_enter(one, account) for one in above):
        return account
    log.warning("user mosquitto cannot get to %s: the broker runs as root", directory)
    return None


def _may_enter(directory: Path, account: pwd.struct_passwd) -> bool:
    status = directory.stat()
    return bool(status.st_mode & 0o001) or (
        status.st_uid == account.pw_uid and bool(status.st_mode & 0o100)
    )
