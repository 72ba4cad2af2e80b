"""Identity of a process: a CURVE key pair, and for a node the id that follows from it.

One pair serves everything: ZeroMQ's CURVE takes it as Z85 text, PyNaCl's Box as its 32 raw bytes,
and the node's id is a hash of the public half, so that no node can have another's id without its
secret. A second pair for signatures was rejected: a process that can open what was sealed to a key
has proven that it holds it.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

from nacl.public import PrivateKey
from zmq.utils import z85

from molink.control.private_file import read_private, write_private
from molink.errors import UserError

KEY_BYTES = 32
"""Length of a curve25519 key, public or secret."""

DEVICE_PURPOSE = b"molink seat"
"""Keeps a device's secret apart from anything else that might be derived from a PC's; the bytes are
part of every derived key."""

NODE_ID_BYTES = 10
"""80 bits, 16 characters: to be met by chance among a million nodes once in 10**12 clusters."""


def key_to_z85(key: bytes) -> str:
    """40 characters for 32 bytes, as ZeroMQ writes keys."""
    assert len(key) == KEY_BYTES, "a key has 32 bytes"
    return z85.encode(key).decode()


def key_from_z85(text: str) -> bytes:
    """The 32 bytes of a key in Z85. Raises ValueError for anything else."""
    try:
        key = z85.decode(text)
    except (KeyError, struct.error):
        raise ValueError("not a key in Z85") from None
    if len(key) != KEY_BYTES:
        raise ValueError("a key in Z85 has 40 characters")
    return key


def node_id_of(public: bytes) -> str:
    """The node's id, 16 characters of a-z and 2-7."""
    digest = hashlib.blake2b(public, digest_size=NODE_ID_BYTES).digest()
    return base64.b32encode(digest).decode().lower()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A curve25519 key pair; its secret half is never shown. Raises ValueError when the halves do
    not belong together."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES or self.public != _public_half(self.secret):
            raise ValueError("the two halves of the key pair do not belong together")

    @classmethod
    def of_secret(cls, secret: bytes) -> "KeyPair":
        """The pair of a secret key of 32 bytes."""
        return cls(_public_half(secret), secret)

    @classmethod
    def generate(cls) -> "KeyPair":
        """A new pair from the system's randomness."""
        return cls.of_secret(bytes(PrivateKey.generate()))

    def for_device(self, number: int) -> "KeyPair":
        """The pair of a PC's further device; 0 is the PC itself.

        Derived, so that there is one secret to keep, to back up and to lose; from a device's secret
        the PC's does not follow.
        """
        if number == 0:
            return self
        salt = number.to_bytes(hashlib.blake2b.SALT_SIZE, "big")
        derived = hashlib.blake2b(
            digest_size=KEY_BYTES, key=self.secret, salt=salt, person=DEVICE_PURPOSE
        )
        return KeyPair.of_secret(derived.digest())

    @property
    def public_z85(self) -> str:
        """The public key as ZeroMQ and our messages write it."""
        return key_to_z85(self.public)

    @property
    def secret_z85(self) -> str:
        """Secret key for ZeroMQ; it goes to a stage over its private pipe and nowhere else."""
        return key_to_z85(self.secret)

    @property
    def node_id(self) -> str:
        """The id of the node that has this pair."""
        return node_id_of(self.public)


def load_or_make_key(path: Path) -> KeyPair:
    """The pair in a key file, made on first use.

    Raises UserError when the file cannot be read or written, may be read by everybody, or is no key
    file.
    """
    text = read_private(path)
    if text is None:
        pair = KeyPair.generate()
        write_private(path, _key_file(pair))
        return pair
    try:
        fields = json.loads(text)
        return KeyPair(key_from_z85(fields["public_key"]), key_from_z85(fields["secret_key"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(
            f"{path} is no key file any more: put back a copy, or delete it and join as a new node."
        ) from None


def _key_file(pair: KeyPair) -> str:
    fields = {"public_key": pair.public_z85, "secret_key": pair.secret_z85}
    return json.dumps(fields, indent=1) + "\n"


def _public_half(secret: bytes) -> bytes:
    return bytes(PrivateKey(secret).public_key)
