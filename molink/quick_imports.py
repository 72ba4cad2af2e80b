"""Imports that are not held up by the collector of garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import in the block without collecting garbage: there is none, and looking for it again and
    again takes a tenth of the start. What is imported stays, so that each look's garbage is found
    without going through it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
