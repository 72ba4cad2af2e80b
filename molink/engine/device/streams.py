"""Streams of one card, and the host memory that it copies from and to on its own.

A card works through a *stream* in order, and through several side by side; an *event* stands in a
stream and is done when all before it is. A copy that the host need not wait for wants *pinned*
memory, which the system leaves where it is. Under WSL little of it can be had, and at times none:
then memory is taken as it comes, copies wait, and the log says so.

Nothing is decided here: `transfers` says what waits for what, and its tests put streams of their
own in this place.
"""

import logging
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

FIRST = -1
"""Priority of a stream whose work goes before that of others: a card takes it up as soon as blocks
of running kernels end."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CardStreams:
    """Streams of a graphics card: one that computes, one that computes decode steps first, and one
    for copies each way."""

    device: torch.device
    decoding: Any = field(init=False)
    to_card: Any = field(init=False)
    to_host: Any = field(init=False)

    def __post_init__(self) -> None:
        stream: Any = torch.cuda.Stream
        self.to_card, self.to_host = stream(self.device), stream(self.device)
        self.decoding = stream(self.device, priority=FIRST)

    @property
    def computing(self) -> Any:
        """The one that operations of this thread are launched into."""
        return torch.cuda.current_stream(self.device)

    def entered(self, stream: Any) -> AbstractContextManager[Any]:
        """Launch what this thread computes into the stream, inside the block."""
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def empty(self, shape: torch.Size, dtype: torch.dtype, stream: Any) -> torch.Tensor:
        """Memory of the card that `stream` may write at once."""
        with torch.cuda.stream(stream):
            return torch.empty(shape, dtype=dtype, device=self.device)

    def copy(self, source: torch.Tensor, target: torch.Tensor, stream: Any) -> None:
        """Launch a copy; the host does not wait."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def record(self, stream: Any) -> Any:
        """An event behind all that was launched into the stream. Who waits for it sleeps, where
        torch's default burns a core of the owner's."""
        made: Any = torch.cuda.Event
        event = made(enable_timing=True, blocking=True)
        stream.record_event(event)
        return event

    def hold(self, stream: Any, event: Any) -> None:
        """Let what is launched into the stream from now on wait for the event."""
        stream.wait_event(event)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Give the tensor's memory to nobody before the stream has done what it was told so far,
        whoever drops it."""
        tensor.record_stream(stream)


# -- memory of the host ---------------------------------------------------------------------------


@dataclass(slots=True)
class HostMemory:
    """Host memory of this process that numbers are copied from and to."""

    pins: bool
    refusal: str | None = None
    """Why it could not be pinned; None: it could, or nobody wants it to be."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that a card copies without anybody waiting, as long as the system gives any."""
        if self.pins:
            try:
                return torch.empty(shape, dtype=dtype, pin_memory=True)
            except RuntimeError as error:
                self.pins, self.refusal = False, str(error).partition("\n")[0]
                log.warning("copies to the card wait: no memory can be pinned: %s", self.refusal)
        return torch.empty(shape, dtype=dtype)


@cache
def host_memory(kind: str) -> HostMemory:
    """The process's host memory for devices of a kind: only a card ("cuda") wants it pinned."""
    return HostMemory(pins=kind == "cuda")


def host_blocks(blocks: int, block_bytes: int, kind: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory [blocks, bytes of one] that goes back to the system as soon as nobody has it, pinned
    for a card where the system allows that. Raises MemoryError.

    Torch's own pinned memory was rejected here: its allocator keeps what was given back.
    """
    blocks_BW = np.empty((blocks, block_bytes), np.uint8)
    if kind == "cuda" and host_memory(kind).pins:
        cudart: Any = torch.cuda.cudart
        runtime = cudart()
        at = blocks_BW.ctypes.data
        if int(runtime.cudaHostRegister(at, blocks_BW.nbytes, 0)) == 0:
            weakref.finalize(blocks_BW, runtime.cudaHostUnregister, at)
        else:
            with suppress(RuntimeError):  # The next launch of this thread is told the error.
                torch.zeros(1, device=kind)
    return blocks_BW


SENT_AS = {np.dtype(np.float64): torch.float64, np.dtype(np.int32): torch.int32}
"""Formats of what is sent, the wider first: each then begins at a multiple of its size."""


def uploaded(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """The arrays, of 32-bit integers and of doubles, on the device, in one copy that nothing waits
    for; on a CPU as they are."""
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    return sent_together(arrays, device) if arrays else []


def sent_together(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """What `uploaded` sends a card."""
    order = [n for wide in SENT_AS for n, array in enumerate(arrays) if array.dtype == wide]
    assert len(order) == len(arrays), "nothing else is sent"
    words = [np.ascontiguousarray(arrays[n]).ravel().view(np.int32) for n in order]
    on_host = host_memory(device.type).empty((sum(map(len, words)),), torch.int32)
    np.concatenate(words, out=on_host.numpy())
    on_device = on_host.to(device, non_blocking=True)
    pieces = dict(zip(order, torch.split(on_device, [*map(len, words)]), strict=True))
    return [
        pieces[n].view(SENT_AS[array.dtype]).view(array.shape) for n, array in enumerate(arrays)
    ]
