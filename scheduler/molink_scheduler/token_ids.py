"""Token ids of a prompt as one string of bytes: four for each, little-endian, as all machines are
that rings run on.

So they are packed once, by the coordinator; so they travel, where a list of 2,000 numbers takes the
head about 90 us more to read; and so the directory of cached blocks compares them.
"""

from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def token_bytes(token_ids: Iterable[int]) -> bytes:
    """Token ids as bytes."""
    return array("I", token_ids).tobytes()


def tokens_of(packed: bytes) -> "array[int]":
    """The token ids that were packed."""
    return array("I", packed)


def common_blocks(one: bytes, other: bytes, size: int) -> int:
    """How many whole blocks of `size` bytes two runs of tokens begin with alike."""
    common = min(len(one), len(other)) // size
    if one[: common * size] == other[: common * size]:
        return common
    low, high = 0, common  # [0, low) are alike, those before `high` are not all.
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * size : middle * size] == other[low * size : middle * size]:
            low = middle
        else:
            high = middle
    return low
