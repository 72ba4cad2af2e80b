"""Walks through the table of contents of a GGUF file, which does not say how long it is.

Every length is compared with what is left of the file before anything is read or made for it, and
counts have limits: files come from strangers.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from molink.errors import CheckpointError, UnsupportedModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Versions that are read. 1 had counts of 32 bits and was written for two months of 2023."""

TENSORS_MAX = 65_536
"""A model of 128 layers with 12 tensors each has 1,500: experts are stacked in this format."""

PAIRS_MAX = 65_536
"""Most pairs of metadata; published files have some dozen."""

VALUES_MAX = 8_000_000
"""Values in all arrays of strings together, which must be walked one by one: a vocabulary of
262,144 with its merges has 800,000. Walking so many takes two seconds."""

TEXTS_BYTES_MAX = 256 * 2**20
"""Bytes of all texts read at once; a vocabulary of 262,144 with its merges has 20 MB."""

NAME_BYTES_MAX = 1024
"""Most bytes of a key or of a tensor's name; the format's own limits are 65,535 and 64."""

TEXT_BYTES_MAX = 4 * 2**20
"""Most bytes of one string; chat templates have some kilobytes."""


STRING, ARRAY = 8, 9
"""Types of values that are no single numbers."""

SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
U32, U64 = SCALARS[4], SCALARS[10]

TAKE_INSTEAD = "take a version of it in Q4_K_M, Q5_K_M, Q6_K or Q8_0"


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Array in the metadata that was left in the file."""

    kind: int
    """Number of its values' type."""
    count: int
    start: int
    """First byte of its values in the file."""


Value = str | int | float | bool | GgufArray


class Walk:
    """Position in a mapped file, which never goes beyond its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.at = 0
        self.size = len(data)
        self._data = data
        self._values_left = VALUES_MAX
        self._text_left = TEXTS_BYTES_MAX

    @classmethod
    def through(cls, path: Path) -> "Walk":
        """The beginning of a file. Raises CheckpointError when it cannot be read."""
        try:
            with path.open("rb") as file:
                return cls(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is empty: fetch it again") from error

    def __enter__(self) -> "Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def damaged(self, what: str) -> CheckpointError:
        """The error for a file of which this is true."""
        return CheckpointError(f"{self.path} is not a readable GGUF file ({what}): fetch it again")

    def counts(self) -> tuple[int, int]:
        """Tensors and pairs, from the first bytes."""
        if self._bytes(len(MAGIC)) != MAGIC:
            raise self.damaged("it does not begin with GGUF")
        version = self.number(U32)
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            what = "for machines of the other byte order" if swapped else f"of version {version}"
            raise UnsupportedModelError(
                f"{self.path} is a GGUF file {what}, which MoLink does not read: {TAKE_INSTEAD}"
            )
        tensors, pairs = self.number(U64), self.number(U64)
        if tensors > TENSORS_MAX or pairs > PAIRS_MAX:
            raise self.damaged(f"it claims {tensors} tensors and {pairs} entries of metadata")
        return tensors, pairs

    def number(self, scalar: struct.Struct) -> int:
        """A number of this type."""
        value: int = scalar.unpack_from(self._data, self._step(scalar.size))[0]
        return value

    def numbers(self, scalar: struct.Struct, count: int) -> tuple[float, ...]:
        """`count` numbers of this type, one behind the other."""
        many = struct.Struct(f"<{count}{scalar.format.removeprefix('<')}")
        return many.unpack_from(self._data, self._step(many.size))

    def text(self, bytes_max: int = NAME_BYTES_MAX) -> str:
        """A string. Tokens may be no UTF-8: other bytes are replaced."""
        size = self.number(U64)
        if size > bytes_max:
            raise self.damaged(f"a text of {size} bytes")
        self._text_left -= size
        if self._text_left < 0:
            raise self.damaged(f"texts of more than {TEXTS_BYTES_MAX} bytes")
        return self._bytes(size).decode("utf-8", errors="replace")

    def skip_array(self) -> GgufArray:
        """Walk over an array."""
        kind, count = self.number(U32), self.number(U64)
        array = GgufArray(kind, count, self.at)
        if kind in SCALARS:
            self._step(count * SCALARS[kind].size)
            return array
        if kind != STRING:
            raise self.damaged("arrays within arrays" if kind == ARRAY else f"the type {kind}")
        self._values_left -= count
        if self._values_left < 0:
            raise self.damaged(f"an array of {count} texts")
        unpack, data, last = U64.unpack_from, self._data, self.size - U64.size
        at = self.at
        for _ in range(count):
            if at > last:
                raise self.damaged("it ends in the middle")
            at += U64.size + unpack(data, at)[0]
        self._step(at - self.at)
        return array

    def _bytes(self, size: int) -> bytes:
        start = self._step(size)
        return self._data[start : start + size]

    def _step(self, size: int) -> int:
        """The position before a step of so many bytes."""
        start = self.at
        if size > self.size - start:
            raise self.damaged("it ends in the middle")
        self.at += size
        return start
