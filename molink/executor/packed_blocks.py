"""KV blocks as plain strings of bytes: how they leave a device's memory, and come back.

A block's rows lie in as many tensors as a stage has layers, keys and values apart, with scales
beside them in int8. Packed they stand one after the other, whatever they are: host memory and a
file need not know the model.

Shapes: B blocks, W bytes of one block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from molink.executor.attention.kv_pool import KvPool
from molink_scheduler.kv.blocks import BLOCK_TOKENS

__all__ = ["PackedBlocks"]


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Packer of the blocks of one or several KV pools, which hold them in places of their own."""

    pools: tuple[KvPool, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of a packed block."""
        return BLOCK_TOKENS * sum(pool.token_bytes for pool in self.pools)

    @property
    def counts(self) -> tuple[int, ...]:
        """Blocks of each pool."""
        return tuple(pool.slots // BLOCK_TOKENS for pool in self.pools)

    def take(self, places: Sequence[Sequence[int]]) -> torch.Tensor:
        """Copy blocks out, [B, W] on the host; `places`: of each pool, where they are."""
        parts: list[torch.Tensor] = []
        with torch.inference_mode():
            for pool, blocks in zip(self.pools, places, strict=True):
                for rows_BW in pool.block_rows():
                    index_B = torch.tensor(blocks, device=rows_BW.device)
                    parts.append(rows_BW.index_select(0, index_B))
            return torch.cat(parts, dim=1).cpu()

    def put(self, places: Sequence[Sequence[int]], packed_BW: torch.Tensor) -> None:
        """Copy packed blocks in, and return when they can be read."""
        start = 0
        with torch.inference_mode():
            for pool, blocks in zip(self.pools, places, strict=True):
                for rows_BW in pool.block_rows():
                    stop = start + rows_BW.shape[1]
                    index_B = torch.tensor(blocks, device=rows_BW.device)
                    part_BW = packed_BW[:, start:stop].to(rows_BW.device)
                    rows_BW.index_copy_(0, index_B, part_BW)
                    start = stop
                    if rows_BW.is_cuda:
                        torch.cuda.current_stream(rows_BW.device).synchronize()
