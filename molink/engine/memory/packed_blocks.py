"""KV blocks as plain strings of bytes: how they leave a device's memory, and come back.

A block's rows lie in as many tensors as a stage has layers, keys and values apart, with scales
beside them in int8. Packed they stand one after the other, whatever they are: host memory and a
file need not know the model.

Shapes: B blocks, W bytes of one block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from molink.engine.device.streams import host_memory
from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.kv_pool import KvPool
from molink.engine_protocol import values
from molink_scheduler.kv.blocks import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Packer of the blocks of one or several KV pools, which hold them in places of their own."""

    pools: tuple[KvPool, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of a packed block."""
        return BLOCK_TOKENS * sum(pool.token_bytes for pool in self.pools)

    def take(self, places: Sequence[Sequence[int]]) -> values.BlockBytes:
        """Copy blocks out, [B, W] on the host; `places`: of each pool, where they are."""
        parts: list[torch.Tensor] = []
        with torch.inference_mode():
            for pool, blocks in zip(self.pools, places, strict=True):
                for rows_BW in pool.block_rows():
                    index_B = torch.tensor(blocks, device=rows_BW.device)
                    parts.append(rows_BW.index_select(0, index_B))
            return torch.cat(parts, dim=1).cpu().numpy()

    def put(
        self, arrivals: Sequence[ArrivingBlocks], blocks_W: Sequence[values.BlockBytes]
    ) -> None:
        """Copy packed blocks in, in their order, layer by layer, and say so of each; returns when
        all can be read. `arrivals`: of each pool."""
        if blocks_W:
            self._fill(arrivals, [torch.from_numpy(block_W) for block_W in blocks_W])
        for arriving in arrivals:
            arriving.end()

    def _fill(self, arrivals: Sequence[ArrivingBlocks], blocks_W: Sequence[torch.Tensor]) -> None:
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


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies into places of a device's blocks, on a card in a stream of their own."""

    places_B: torch.Tensor
    stream: Any = None

    @classmethod
    def to(cls, device: torch.device, places: Sequence[int]) -> "_Copies":
        if device.type != "cuda":
            return cls(torch.tensor(places))
        made: Any = torch.cuda.Stream
        stream = made(device)
        with torch.cuda.stream(stream):
            return cls(torch.tensor(places, device=device), stream)

    def copy(self, rows_BW: torch.Tensor, parts_W: Sequence[torch.Tensor]) -> None:
        if self.stream is None:
            rows_BW.index_copy_(0, self.places_B, torch.stack(list(parts_W)))
            return
        staged_BW = host_memory("cuda").empty((len(parts_W), rows_BW.shape[1]), torch.uint8)
        torch.stack(list(parts_W), out=staged_BW)
        with torch.cuda.stream(self.stream):
            part_BW = staged_BW.to(rows_BW.device, non_blocking=True)
            rows_BW.index_copy_(0, self.places_B, part_BW)

    def event(self) -> Any:
        return None if self.stream is None else self.stream.record_event()

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()
