"""Records what a computation launches on a card, as a CUDA graph that launches all of it at once.

A decode step of 32 layers is a thousand launches of some microseconds each, and on a home PC the
host needs longer for them than the card for the work. A graph bakes in addresses and Python's
numbers, so what it computes has to live in tensors that stay where they are (`static_inputs`).

Tests record with a twin for the CPU, a tape of operations, which bakes in the same.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from molink.engine.device.streams import FIRST

SWITCH = "MOLINK_DECODE_GRAPHS"
"""Environment variable; with 0 nothing is recorded."""

WARM_UPS = 2
"""Runs before the recorded one: kernels are compiled and libraries opened in the first, and the
second shows the allocator what it takes."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded computation, and the place of its result."""

    out: torch.Tensor
    """Result, always at the same place; the next replay of any recording may write there."""
    replay: Callable[[], None]


class Recorder(Protocol):
    """Records computations whose inputs stay where they are."""

    def record(self, compute: Callable[[], torch.Tensor]) -> Recording:
        """Run `compute` until it is warm, and record it once. Raises whatever `compute` or a card
        says against it."""


@dataclass(slots=True)
class CudaRecorder:
    """Recorder of CUDA graphs. They share one pool of memory, so no two may run at a time."""

    device: torch.device
    cuda: Any = torch.cuda
    """Torch's module, or a stand-in of the tests."""
    stream: Any = field(init=False)
    """Stream on which graphs are recorded, since on the default one none can be. Kernels keep its
    priority."""
    _pool: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.stream = self.cuda.Stream(self.device, priority=FIRST)

    def record(self, compute: Callable[[], torch.Tensor]) -> Recording:
        """Run `compute` until it is warm, and record it once."""
        self.stream.wait_stream(self.cuda.current_stream(self.device))
        with self.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                compute()
        self.stream.synchronize()
        graph = self.cuda.CUDAGraph()
        # Links, hashes and others live in threads of their own, and may ask the driver meanwhile.
        with self.cuda.graph(
            graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            out = compute()
        self._pool = graph.pool()
        return Recording(out, graph.replay)


def recorder_on(device: torch.device) -> Recorder | None:
    """The recorder for a device; None where there is none, or nobody wants it."""
    if device.type != "cuda" or os.environ.get(SWITCH) == "0":
        return None
    return CudaRecorder(device)
