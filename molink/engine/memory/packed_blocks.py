"""KV blocks as plain strings of bytes: how they leave a device's memory, and come back.

A block's rows lie in as many tensors as a stage has layers, keys and values apart, with scales
beside them in int8. Packed they stand one after the other, whatever they are: host memory and a
file need not know the model.

Shapes: B blocks, W bytes of one block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from molink.engine.device.streams import host_memory
from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.kv_pool import KvPool
from molink.engine_protocol import values
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.number_runs import number_runs


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Packer of the blocks of one or several KV pools, which hold them in places of their own."""

    pools: tuple[KvPool, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of a packed block."""
        return BLOCK_TOKENS * sum(pool.token_bytes for pool in self.pools)

    @property
    def kind(self) -> str:
        """Kind of the device that the pools are on."""
        return next((rows.device.type for pool in self.pools for rows in pool.block_rows()), "cpu")

    def take(self, places: Sequence[Sequence[int]]) -> values.BlockBytes:
        """Copies of blocks, [B, W] on the host; `places`: of each pool, where they are."""
        out_BW: values.BlockBytes = np.empty((len(places[0]), self.block_bytes), np.uint8)
        self.copy_out(places, out_BW)
        return out_BW

    def copy_out(self, places: Sequence[Sequence[int]], out_BW: values.BlockBytes) -> None:
        """Copy blocks out, in their order, into memory of the host."""
        start = 0
        with torch.inference_mode():
            for pool, blocks in zip(self.pools, places, strict=True):
                tensors = pool.block_rows()
                stop = start + sum(rows_BW.shape[1] for rows_BW in tensors)
                copied = _copy_from_card if self.kind == "cuda" else _copy_from_host
                copied(tensors, blocks, out_BW[:, start:stop])
                start = stop

    def put(
        self, arrivals: Sequence[ArrivingBlocks], blocks_W: Sequence[values.BlockBytes]
    ) -> None:
        """Copy packed blocks in, in their order, layer by layer, and say so of each; returns when
        all can be read. `arrivals`: of each pool."""
        if blocks_W:
            self._fill(arrivals, blocks_W)
        for arriving in arrivals:
            arriving.end()

    def _fill(
        self, arrivals: Sequence[ArrivingBlocks], blocks_W: Sequence[values.BlockBytes]
    ) -> None:
        start = 0
        with torch.inference_mode():
            for pool, arriving in zip(self.pools, arrivals, strict=True):
                copies = None
                for layer, tensors in pool.block_rows_by_layer().items():
                    copies = copies or _Copies.to(tensors[0].device, arriving.places)
                    for rows_BW in tensors:
                        stop = start + rows_BW.shape[1]
                        copies.copy(rows_BW, [block_W[start:stop] for block_W in blocks_W])
                        start = stop
                    arriving.layer_is_there(layer, copies.event())
                if copies is not None:
                    copies.wait()


def _copy_from_host(
    tensors: Sequence[torch.Tensor], blocks: Sequence[int], out_BW: values.BlockBytes
) -> None:
    """Copy neighbours at once: numpy lets others compute meanwhile, and takes no memory for it."""
    start, runs = 0, _runs_of(blocks)
    for tensor_BW in tensors:
        rows_BW, stop = tensor_BW.numpy(), start + tensor_BW.shape[1]
        for at, run in runs:
            out_BW[at : at + len(run), start:stop] = rows_BW[run.start : run.stop]
        start = stop


def _copy_from_card(
    tensors: Sequence[torch.Tensor], blocks: Sequence[int], out_BW: values.BlockBytes
) -> None:
    """Gather the blocks on the card and send them at once, in a stream beside the one that
    computes. Who waits for the rows that are copied has waited for their steps before."""
    made: Any = torch.cuda.Stream
    stream = made(tensors[0].device)
    with torch.cuda.stream(stream):
        index_B = torch.tensor(blocks, device=tensors[0].device)
        gathered_BW = torch.cat([rows_BW.index_select(0, index_B) for rows_BW in tensors], dim=1)
        torch.from_numpy(out_BW).copy_(gathered_BW, non_blocking=True)
    stream.synchronize()


def _runs_of(blocks: Sequence[int]) -> list[tuple[int, range]]:
    """Blocks as runs of neighbours, each with the place of its first among them."""
    runs = number_runs(blocks)
    return [*zip(accumulate(map(len, runs), initial=0), runs, strict=False)]


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies into places of a device's blocks, on a card in a stream of their own."""

    places: Sequence[int]
    places_B: torch.Tensor | None = None
    stream: Any = None

    @classmethod
    def to(cls, device: torch.device, places: Sequence[int]) -> "_Copies":
        if device.type != "cuda":
            return cls(places)
        made: Any = torch.cuda.Stream
        stream = made(device)
        with torch.cuda.stream(stream):
            return cls(places, torch.tensor(places, device=device), stream)

    def copy(self, rows_BW: torch.Tensor, parts_W: Sequence[values.BlockBytes]) -> None:
        if self.places_B is None:
            on_host_BW = rows_BW.numpy()
            for place, part_W in zip(self.places, parts_W, strict=True):
                on_host_BW[place] = part_W
            return
        staged_BW = host_memory("cuda").empty((len(parts_W), rows_BW.shape[1]), torch.uint8)
        np.stack(parts_W, out=staged_BW.numpy())
        with torch.cuda.stream(self.stream):
            part_BW = staged_BW.to(rows_BW.device, non_blocking=True)
            rows_BW.index_copy_(0, self.places_B, part_BW)

    def event(self) -> Any:
        return None if self.stream is None else self.stream.record_event()

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()
