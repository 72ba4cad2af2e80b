"""Fetches the blocks that parts still miss, until none is missing or it makes no sense any more.

One request asks for a few neighbouring blocks, so that a coordinator can deal its slots out fairly
and a lost connection costs little. Each block is compared with its checksum before anything is
written; a damaged one is simply still missing, and after a few tries the line is given up on. Only
failures in a row count: one good block, and patience starts afresh.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest
from molink.errors import WeightsError
from molink_agent.weights.block_client import BlockClient
from molink_agent.weights.part_file import PartFile
from molink_agent.weights.patience import Patience
from molink_agent.weights.progress import ProgressMeter
from molink_agent.weights.threads import in_thread, on_disk

__all__ = ["download"]

REQUEST_BYTES = 64 * 2**20
"""Asked for at once: 50 s of a line of 10 Mbps, and so long that a round trip does not count."""

BLOCK_TRIES = 3
"""Of one block that comes damaged. TCP lets one error through in 10**9 packets or so; three in the
same place are no accident of the line."""


async def download(
    client: BlockClient,
    manifest: WeightsManifest,
    files: Sequence[PartFile],
    patience: Patience,
    meter: ProgressMeter,
) -> None:
    """Fetch what is missing in `files`, which have been verified, and finish them. Raises
    WeightsError, or DiskFullError."""
    by_source: dict[str, list[PartFile]] = {}
    for file in files:
        by_source.setdefault(file.part.source.name, []).append(file)
    for name, parts in by_source.items():
        await _SourceFile(client, manifest.file(name), parts, patience, meter).fetch()


class _SourceFile:
    """One of the coordinator's files, and our parts of it."""

    def __init__(
        self,
        client: BlockClient,
        entry: FileEntry,
        parts: Sequence[PartFile],
        patience: Patience,
        meter: ProgressMeter,
    ) -> None:
        self._client = client
        self._entry = entry
        self._parts = parts
        self._patience = patience
        self._meter = meter
        self._block_bytes = parts[0].block_bytes
        self._damaged: Counter[int] = Counter()

    async def fetch(self) -> None:
        """All that is missing."""
        while blocks := self._missing():
            run = _first_run(blocks, max(1, REQUEST_BYTES // self._block_bytes))
            await self._patience(lambda run=run: self._fetch_run(run))  # type: ignore[misc]
        for file in self._parts:
            await in_thread(on_disk, file.finish)

    def _missing(self) -> list[int]:
        return sorted({block for file in self._parts for block in file.missing})

    async def _fetch_run(self, run: range) -> None:
        blocks = self._client.blocks(self._entry, run[0], run[-1], self._block_bytes)
        async with aclosing(blocks):
            async for block, data in blocks:
                if await in_thread(on_disk, lambda: self._take(block, data)):  # noqa: B023
                    self._patience.restore()
                else:
                    self._count_damage(block)
                self._meter.came(len(data))

    def _take(self, block: int, data: bytes) -> bool:
        """Give a block to the parts that want it, unless it is damaged."""
        if hashlib.sha256(data).hexdigest() != self._entry.blocks[block]:
            return False
        for file in self._parts:
            self._meter.kept(file.take(block, data))
        return True

    def _count_damage(self, block: int) -> None:
        self._damaged[block] += 1
        if self._damaged[block] >= BLOCK_TRIES:
            raise WeightsError(
                f"block {block} of {self._entry.name} came damaged {BLOCK_TRIES} times from "
                f"{self._client.url}; nothing of it was kept: the coordinator's disk or the way "
                "there is at fault, or its files have changed since it started"
            )


def _first_run(blocks: Sequence[int], count_max: int) -> range:
    """The first of `blocks` and those that follow it without a gap."""
    stop = blocks[0] + 1
    for block in blocks[1:count_max]:
        if block != stop:
            break
        stop += 1
    return range(blocks[0], stop)
