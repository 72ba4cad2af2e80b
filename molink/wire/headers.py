"""Plain values of a message's header, of which a few bytes may not become many in memory.

A byte of msgpack may become dozens. So maps and extensions, which no message has, are refused, and
of arrays there are no more than a message needs.
"""

from dataclasses import dataclass
from typing import Any, Never

import msgpack

from molink.errors import FrameError

PLAIN_HEADER_BYTES_MAX = 64 * 2**10
"""Bytes of a header whose arrays are not counted: all that it holds is a few megabytes at most."""

ARRAYS_MAX = 64 * 2**10
"""Arrays in a longer header: a batch of 4,096 spans that admits as many requests has 33,000, and
their logit biases may be 16,000 more."""


def unpacked(header: bytes | memoryview) -> Any:
    """The plain values of a header: numbers, texts and arrays, nothing else."""
    count = _ArrayCount() if len(header) > PLAIN_HEADER_BYTES_MAX else None
    return msgpack.unpackb(
        header,
        use_list=False,
        object_pairs_hook=_refuse_map,
        ext_hook=_refuse_map,
        max_ext_len=0,
        list_hook=count,
    )


def _refuse_map(*values: Any) -> Never:
    raise FrameError("malformed frame: no message holds maps or extensions")


@dataclass(slots=True)
class _ArrayCount:
    """Counter of the arrays in a long header."""

    left: int = ARRAYS_MAX

    def __call__(self, array: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise FrameError(f"a header of more than {ARRAYS_MAX} arrays")
        return array
