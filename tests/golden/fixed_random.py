"""The system's randomness, as a counter's hashes, while something random is written."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

PLACES = ("os.urandom", "random._urandom", "nacl.public.random", "nacl.utils.random")


@contextmanager
def fixed_random() -> Iterator[None]:
    count = 0

    def draw(size: int = 32) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"draw {count}".encode()).digest(size)

    with ExitStack() as stack:
        for place in PLACES:
            stack.enter_context(patch(place, draw))
        yield


def numbered(written: str, drawn: str) -> str:
    """With what was drawn, and matches `drawn`, replaced by 1, 2, ... of the same length: how often
    the code draws is its own business."""
    seen: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], str(len(seen) + 1).zfill(len(match[0])))

    return re.sub(drawn, number, written)
