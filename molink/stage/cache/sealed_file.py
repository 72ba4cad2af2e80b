"""File of blocks that only this process can read, and that nobody else can alter unnoticed.

Cached KV tells what users have asked, so on a volunteer's disk it is encrypted (AES-GCM) with a key
that lives in this process's memory only, and ends with it. Each block stands in a slot of its own;
which block it is and when it was written are authenticated with it, so that one that was altered,
cut off, or is an older one of the same slot reads as lost. The file has no name: it is gone with
the process, however that ends.
"""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG_BYTES = 16
"""Bytes of AES-GCM's tag behind each block."""

NONCE_BYTES = 12
"""A count of all that was ever written: no two writes under one key have the same."""


@dataclass(slots=True)
class SealedFile:
    """Encrypted slots of one size in a file without a name; for one thread at a time."""

    folder: Path
    slots_max: int
    block_bytes: int
    _file: IO[bytes] = field(init=False)
    _cipher: AESGCM = field(init=False)
    _slots: dict[int, tuple[int, bytes]] = field(init=False, default_factory=dict)
    """Slot of each block and the nonce that it was written with, by the block's number."""
    _free: list[int] = field(init=False, default_factory=list)
    """Slots that were given back."""
    _written: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 - it stays
        self._cipher = AESGCM(AESGCM.generate_key(bit_length=256))

    def __contains__(self, number: int) -> bool:
        return number in self._slots

    @property
    def held_bytes(self) -> int:
        """Bytes of the disk that its blocks take."""
        return len(self._slots) * (self.block_bytes + TAG_BYTES)

    def write(self, number: int, block: bytes) -> bool:
        """Keep a block; whether there is a slot for it. Raises OSError where the disk is full: from
        then on there are no more slots than there are now."""
        if not self._free and len(self._slots) >= self.slots_max:
            return False
        is_new = not self._free
        slot = len(self._slots) if is_new else self._free.pop()
        self._written += 1
        nonce = self._written.to_bytes(NONCE_BYTES, "big")
        sealed = self._cipher.encrypt(nonce, block, _name(number))
        try:
            self._file.seek(slot * (self.block_bytes + TAG_BYTES))
            if self._file.write(sealed) != len(sealed):
                raise OSError("the disk took only a part of a block")
        except OSError:
            if is_new:
                self.slots_max = slot
            else:
                self._free.append(slot)
            raise
        self._slots[number] = slot, nonce
        return True

    def read(self, number: int) -> bytes | None:
        """A block that was written; None: it is lost, or was altered. Raises OSError where the disk
        cannot be read."""
        if number not in self._slots:
            return None
        slot, nonce = self._slots[number]
        try:
            self._file.seek(slot * (self.block_bytes + TAG_BYTES))
            sealed = self._file.read(self.block_bytes + TAG_BYTES)
            return self._cipher.decrypt(nonce, sealed, _name(number))
        except (InvalidTag, ValueError):
            return None

    def drop(self, number: int) -> None:
        """Keep a block no more; one that is not here is fine."""
        if (found := self._slots.pop(number, None)) is not None:
            self._free.append(found[0])

    def clear(self, slots_max: int, block_bytes: int) -> None:
        """Keep nothing, give the disk back, and have other slots from then on."""
        self.slots_max, self.block_bytes = slots_max, block_bytes
        self._slots.clear()
        self._free.clear()
        self._file.truncate(0)

    def settle(self) -> None:
        """Have all that was written on the disk and, where the system allows it, no more in its
        memory."""
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _name(number: int) -> bytes:
    return number.to_bytes(8, "big")
