"""An invite: all that an agent needs to join, in one string that survives a chat window.

    molink1-<base64url of: length of the URL, flags, id, secret, coordinator's key, URL, checksum>

The length stands first, so that what was cut off while copying is told apart from what was altered.
The checksum guards against mistyping and nothing else; what counts is the secret, of which the
coordinator keeps a hash. The key is the coordinator's: the first request is already sealed to it,
so that the secret is never readable on the way and nobody can play the coordinator. A token signed
by the coordinator was rejected: it would have to be looked up all the same, to count its uses.

An invite is never logged: neither it nor its secret shows itself when printed.
"""

import base64
import hashlib
import os
import re
import struct
import zlib
from dataclasses import dataclass

from molink.control.identity import KEY_BYTES
from molink.errors import UserError

PREFIX = "molink1-"
"""Names the format; another number is another version."""

ANY_PREFIX = re.compile(r"molink(\d+)-")

OPTION = re.compile(r"\s--[a-z]")
"""Where options of a command line begin."""

ID_BYTES = 8
SECRET_BYTES = 16
"""128 bits: guessing is hopeless even offline, so its plain hash may lie in a database."""

HEAD = struct.Struct(f">BB{ID_BYTES}s{SECRET_BYTES}s{KEY_BYTES}s")
"""Length of the URL without its scheme, flags, id, secret, key."""

CHECKSUM = struct.Struct(">I")
"""CRC-32 finds every change within 32 bits in a row, hence of any character."""

URL_BYTES_MAX = 200
"""A host name has at most 253, people's have 30; a chat window breaks long words."""

PAYLOAD = re.compile(r"[A-Za-z0-9_-]*")

HTTPS = 1
"""The only flag, set in every invite: those without it led to the API's port, before agents had one
of their own."""

URL = re.compile(r"https://[A-Za-z0-9\[][A-Za-z0-9.\-_~:\[\]/%]*")
"""Host, port and path: no user, no query, nothing that a shell would take for its own."""


@dataclass(frozen=True, slots=True, repr=False)
class InviteSecret:
    """Whoever knows these 16 bytes may join."""

    value: bytes

    def __repr__(self) -> str:
        return "InviteSecret(hidden)"

    @property
    def digest(self) -> bytes:
        """What the coordinator keeps of it, 32 bytes."""
        return hashlib.blake2b(self.value, digest_size=32).digest()


@dataclass(frozen=True, slots=True, repr=False)
class Invite:
    """Invite of one cluster: where to join, with which secret, and the key of the right place."""

    url: str
    """URL of the coordinator's port for agents: https, without a slash at its end."""
    invite_id: str
    """16 hexadecimal digits; not secret, it names the invite in lists."""
    secret: InviteSecret
    coordinator_key: bytes
    """The coordinator's public key, 32 bytes."""

    @classmethod
    def make(cls, url: str, coordinator_key: bytes) -> "Invite":
        """A new one from the system's randomness. Raises UserError for a URL that cannot be
        one."""
        secret = InviteSecret(os.urandom(SECRET_BYTES))
        return cls(checked_url(url), os.urandom(ID_BYTES).hex(), secret, coordinator_key)

    @classmethod
    def parse(cls, text: str) -> "Invite":
        """Read what a person pasted; white space and line breaks do not matter, nor does the rest
        of a command line around it.

        Raises UserError with a sentence that tells what is no invite at all from what was cut off
        and from what was altered.
        """
        raw = _unpacked(_payload("".join(_of_line(text).split())))
        _, flags, invite_id, secret, key = HEAD.unpack_from(raw)
        if not flags & HTTPS:
            raise UserError(
                "This invite is of an older MoLink: ask whoever runs the cluster to update it and "
                "for a new one."
            )
        rest = raw[HEAD.size : -CHECKSUM.size].decode("ascii", "replace")
        url = checked_url(f"https://{rest}")
        return cls(url, invite_id.hex(), InviteSecret(secret), key)

    @property
    def text(self) -> str:
        """The invite itself: for the person who asked for it, never for a log."""
        rest = self.url.removeprefix("https://")
        secret, key = self.secret.value, self.coordinator_key
        head = HEAD.pack(len(rest), HTTPS, bytes.fromhex(self.invite_id), secret, key)
        raw = head + rest.encode()
        raw += CHECKSUM.pack(zlib.crc32(raw))
        return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"Invite({self.invite_id} to {self.url})"


def checked_url(text: str) -> str:
    """A coordinator's URL without slashes at its end. Raises UserError for what cannot be one."""
    url = text.rstrip("/")
    if URL.fullmatch(url) is None or len(url) > URL_BYTES_MAX:
        raise UserError(
            f"{text!r:.80} is no address of a coordinator for agents: give https://HOST:PORT, with "
            "the port of --agents-port."
        )
    return url


def _of_line(text: str) -> str:
    """What begins as an invite, without the words before it and options behind it."""
    found = ANY_PREFIX.search(text)
    return text if found is None else OPTION.split(text[found.start() :])[0]


def _payload(text: str) -> str:
    """What stands behind the prefix."""
    if text.startswith(PREFIX):
        return text.removeprefix(PREFIX)
    other = ANY_PREFIX.match(text)
    if other is not None:
        raise UserError(
            f"This invite is of format {other[1]}, this MoLink reads {PREFIX[6:-1]}: "
            "update the older side."
        )
    raise UserError(f"This is not an invite: one begins with {PREFIX}; copy it whole.")


def _unpacked(payload: str) -> bytes:
    """All bytes of an invite, complete and unaltered."""
    raw = _decoded(payload)
    expected = None if not raw else HEAD.size + raw[0] + CHECKSUM.size
    if expected is None or len(raw) < expected:
        raise UserError("The end of this invite is missing: copy it whole and try again.")
    body, checksum = raw[: -CHECKSUM.size], raw[-CHECKSUM.size :]
    is_canonical = base64.urlsafe_b64encode(raw).decode().rstrip("=") == payload
    if len(raw) > expected or checksum != CHECKSUM.pack(zlib.crc32(body)) or not is_canonical:
        raise _altered()
    return raw


def _decoded(payload: str) -> bytes:
    """Whole bytes of the payload; a last character that stands for no byte is left out."""
    if not PAYLOAD.fullmatch(payload):
        raise _altered()
    whole = payload[:-1] if len(payload) % 4 == 1 else payload
    return base64.urlsafe_b64decode(whole + "=" * (-len(whole) % 4))


def _altered() -> UserError:
    return UserError("This invite was altered on its way: copy it again, or ask for a new one.")
