"""File of blocks that only its node can read, and that nobody else can alter unnoticed.

Cached KV tells what users have asked, so on a volunteer's disk it is encrypted (AES-GCM) with a key
that is nowhere but in memory: in this process's, and where the node keeps the file for the process
that takes this one's place, in the node's. Each block stands in a slot of its own; which block it
is, by whose numbers, and when it was written are authenticated with it, so that one that was
altered, cut off, or is an older one of the same slot reads as lost. The file has no name: it is
gone with the last process that has it open, however that ends.
"""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from molink.stage.cache.kept_index import BlockIndex, Slots
from molink.stage_protocol.cache_room import KeptFiles

TAG_BYTES = 16
"""Bytes of AES-GCM's tag behind each block."""

NONCE_BYTES = 12
"""The process's number, 4 bytes, and a count of all that it has written: no two writes under one
key have the same."""


@dataclass(slots=True)
class SealedFile:
    """Encrypted slots of one size in a file without a name; for one thread at a time."""

    folder: Path
    slots_max: int
    block_bytes: int
    kept: KeptFiles | None = None
    """Files that outlive the process, in place of its own."""
    directory: int = field(init=False, default=0)
    """Directory that has given the blocks' numbers, by the epoch in which it began."""
    unread: OSError | ValueError | None = field(init=False, default=None)
    """Why nothing is believed of what the process before has left, if it has left anything."""
    _file: IO[bytes] = field(init=False)
    _index: BlockIndex = field(init=False)
    _cipher: AESGCM = field(init=False)
    _slots: Slots = field(init=False, default_factory=dict)
    """Slot of each block and the nonce that it was written with, by the block's number."""
    _free: list[int] = field(init=False, default_factory=list)
    """Slots that were given back."""
    _written: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        key = AESGCM.generate_key(256) if self.kept is None else bytes.fromhex(self.kept.key)
        self._file, index = self._opened()
        self._index, self._cipher = BlockIndex(index, key), AESGCM(key)
        self._written = (self.kept.start if self.kept is not None else 0) << 64
        try:
            self.directory, self._slots = self._index.read(self.slots_max)
        except (OSError, ValueError) as error:
            self.unread = error
        used = {slot for slot, _ in self._slots.values()}
        self._free = [slot for slot in range(max(used, default=-1)) if slot not in used]

    def _opened(self) -> tuple[IO[bytes], IO[bytes]]:
        """Files of the blocks and of their index, which stay open."""
        if self.kept is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            own = [tempfile.TemporaryFile(dir=self.folder, buffering=0) for _ in "12"]  # noqa: SIM115
            return own[0], own[1]
        paths = Path(self.kept.blocks), Path(self.kept.index)
        blocks, index = (path.open("r+b", buffering=0) for path in paths)
        return blocks, index

    def __contains__(self, number: int) -> bool:
        return number in self._slots

    def numbers(self) -> frozenset[int]:
        """Blocks that are here, if they can be read."""
        return frozenset(self._slots)

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
        sealed = self._cipher.encrypt(nonce, block, self._name(number))
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
        self._index.put(slot, number, nonce)
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
            return self._cipher.decrypt(nonce, sealed, self._name(number))
        except (InvalidTag, ValueError):
            return None

    def drop(self, number: int) -> None:
        """Keep a block no more; one that is not here is fine."""
        if (found := self._slots.pop(number, None)) is not None:
            self._free.append(found[0])
            with suppress(
                OSError
            ):  # Who reads the entry finds another block there, or nobody asks.
                self._index.drop(found[0])

    def clear(self, slots_max: int, block_bytes: int, directory: int = 0) -> None:
        """Keep nothing, give the disk back, and have other slots from then on, for blocks that this
        directory numbers."""
        self.slots_max, self.block_bytes, self.directory = slots_max, block_bytes, directory
        self._slots.clear()
        self._free.clear()
        self._file.truncate(0)
        self._index.begin(directory)

    def settle(self) -> None:
        """Have all that was written on the disk and, where the system allows it, no more in its
        memory."""
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _name(self, number: int) -> bytes:
        return self.directory.to_bytes(8, "big") + number.to_bytes(8, "big")
