"""How long does a device take, and how much of that is its own?

A card runs behind the host: what is measured on the host's clock ends with a wait. What a kernel
takes is less than what launching it takes, often by far, so it is recorded into a CUDA graph many
times over, and the graph is replayed: then the host has no part in it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["device_us", "wall_us"]

Call = Callable[[], Any]

REPEATS = {"cuda": 20, "cpu": 2}
"""Of which the median counts."""

RECORDED = 20
"""Calls in a graph."""


def wall_us(call: Call, device: torch.device, repeats: int | None = None) -> float:
    """Median microseconds of a call and of waiting for what it launched."""
    call()
    wait(device)
    times = []
    for _ in range(repeats or REPEATS[device.type]):
        began = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def device_us(call: Call, device: torch.device) -> float:
    """Median microseconds of the device for what a call launches; on a CPU its own."""
    if device.type != "cuda":
        return wall_us(call, device)
    stream: Any = torch.cuda.Stream
    graph, side = torch.cuda.CUDAGraph(), stream(device)
    wait(device)  # What the call reads may still be made.
    with torch.cuda.stream(side):
        call()  # What is made at a first call is made outside of the graph.
    wait(device)
    with torch.cuda.graph(graph, stream=side):
        for _ in range(RECORDED):
            call()
    return wall_us(graph.replay, device) / RECORDED


def wait(device: torch.device) -> None:
    """Wait until all is computed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
