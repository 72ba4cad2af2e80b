"""Index of a stage's sealed blocks, in a file that outlives the stage's process.

A node keeps both files, which have no names, and their key for whichever process takes the lost
one's place. What such a process may believe is in the key: who computes other layers, from other
weights or in another format, has another one, so that no header here, and no block, opens to it.
An entry is written behind its block and names the block's nonce. So where a process has ended
between the two, or the disk has torn one of them, the block is sealed otherwise than the entry
says, and reads as lost.
"""

import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import IO

from molink import __version__
from molink.engine_protocol.values import Prepared
from molink.stage_protocol.messages import LoadStage

_HEADER = Struct(">Q16s")
"""Directory that has numbered the blocks, and a seal of it by the key."""

_ENTRY = Struct(">Q12s")
"""Number of the block in a slot, and one more, and the nonce that it was sealed with; zeros where
there is none."""

Slots = dict[int, tuple[int, bytes]]
"""Slot and nonce of each block, by its number."""


@dataclass(slots=True)
class BlockIndex:
    """Index of the blocks in a sealed file; what cannot be written raises OSError."""

    file: IO[bytes]
    key: bytes

    def read(self, slots_max: int) -> tuple[int, Slots]:
        """The directory that has numbered the blocks, and where they are, as the process before has
        left them; 0 and none where there was no process. Raises ValueError where it computed other
        layers, or the file was altered, and OSError where the disk cannot be read."""
        self.file.seek(0)
        raw = self.file.read(_HEADER.size + slots_max * _ENTRY.size)
        if not raw:
            return 0, {}
        directory, seal = _HEADER.unpack_from(raw.ljust(_HEADER.size, b"\0"))
        if not hmac.compare_digest(seal, self._seal(directory)):
            raise ValueError("it is of other layers, or was altered")
        whole = (len(raw) - _HEADER.size) // _ENTRY.size
        entries = _ENTRY.iter_unpack(raw[_HEADER.size : _HEADER.size + whole * _ENTRY.size])
        slots: Slots = {}
        for slot, (named, nonce) in enumerate(entries):
            if named and nonce > slots.get(named - 1, (0, b""))[1]:
                slots[named - 1] = slot, nonce
        return directory, slots

    def put(self, slot: int, number: int, nonce: bytes) -> None:
        """Note the block that a slot has now."""
        self._write(_HEADER.size + slot * _ENTRY.size, _ENTRY.pack(number + 1, nonce))

    def drop(self, slot: int) -> None:
        """Note that a slot has no block."""
        self._write(_HEADER.size + slot * _ENTRY.size, bytes(_ENTRY.size))

    def begin(self, directory: int) -> None:
        """Note that there are no blocks, and whose numbers the next ones will have."""
        self.file.truncate(0)
        self._write(0, _HEADER.pack(directory, self._seal(directory)))

    def _write(self, place: int, raw: bytes) -> None:
        self.file.seek(place)
        if self.file.write(raw) != len(raw):
            raise OSError("the disk took only a part of the index")

    def _seal(self, directory: int) -> bytes:
        said = b"molink index" + directory.to_bytes(8, "big")
        return hashlib.blake2b(said, key=self.key, digest_size=16).digest()


def kv_identity(load: LoadStage, layers: Prepared) -> bytes:
    """All that KV of a stage depends on beside its tokens: who differs in it believes no block that
    another process has left."""
    folder = Path(load.model)
    if not folder.is_dir():  # A hub's, which may change at any time.
        return os.urandom(16)
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    weights = [(one.name, one.stat()) for one in files if one.exists()]
    seen = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in weights]
    held = layers.layers, layers.dtype, layers.loaded.kv_dtype, layers.block_bytes
    return repr((__version__, str(folder), load.work.device, seen, held)).encode()
