"""Sees to it that the weights of some layers are on this disk, from the coordinator or the hub.

Of the coordinator's files only blocks that parts still miss are fetched, until none is missing or
it makes no sense any more. One request asks for a few neighbouring blocks, so that a coordinator
can deal its slots out fairly and a lost connection costs little. Each block is compared with its
checksum before anything is written; a damaged one is simply still missing, and after a few tries
the line is given up on. Only failures in a row count: one good block, and the count starts anew.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from molink.checkpoint.shard_plan import plan_shards
from molink.checkpoint.weights_manifest import FileEntry
from molink.errors import WeightsError
from molink_agent.weights.block_client import BlockClient, Retries, open_client
from molink_agent.weights.hub import StagePart, fetch_from_hub
from molink_agent.weights.part_file import PartFile, parts_of
from molink_agent.weights.source import (
    CoordinatorSource,
    Progress,
    ProgressMeter,
    Source,
    WeightsLimits,
)
from molink_agent.weights.weights_dir import (
    DiskFullError,
    DiskSpace,
    ModelFolder,
    in_thread,
    layers_text,
    locked,
    make_view,
    on_disk,
)

REQUEST_BYTES = 64 * 2**20
"""Bytes asked for at once: 50 s of a line of 10 Mbps, so that a round trip does not count."""

BLOCK_TRIES = 3
"""Tries of one block that comes damaged. TCP lets one error through in 10**9 packets or so; three
in the same place are no accident of the line."""


async def ensure_weights(
    source: Source,
    layers: range,
    directory: Path,
    limits: WeightsLimits | None = None,
    progress: Progress = lambda downloaded: None,
    drafts: bool = False,
) -> Path:
    """Fetch what the stage of `layers` needs and `directory` does not hold yet; return the
    checkpoint directory to load it from. `drafts`: the checkpoint's drafting layer, too.

    `directory` is for weights only and may hold several models. Everything that the returned
    directory leads to has been compared with its checksum in this call. May be called again at any
    time, with other layers too, and after any kind of end; what has come and is good is not fetched
    twice. Raises MolinkError with one sentence: WeightsError (disk, network, damage, a wrong
    token), UserError for layers that the model does not have.
    """
    limits = limits or WeightsLimits()
    with locked(directory) as root:
        if isinstance(source, CoordinatorSource):
            return await _from_coordinator(source, (layers, drafts), root, limits, progress)
        return await fetch_from_hub(source, (layers, drafts), root, limits, progress)


async def _from_coordinator(
    source: CoordinatorSource,
    part: StagePart,
    directory: Path,
    limits: WeightsLimits,
    progress: Progress,
) -> Path:
    layers, _ = part
    async with open_client(source) as client:
        retries = Retries(limits)
        manifest = await retries(client.manifest)
        plan = await in_thread(plan_shards, manifest.weight_map(), manifest.shape, *part)
        folder = ModelFolder.of(directory, manifest.model, manifest.revision)
        parts = await in_thread(parts_of, manifest, plan)
        files = [PartFile(folder.parts, part, manifest.block_bytes) for part in parts]
        space = DiskSpace(directory, limits, f"{layers_text(layers)} of {manifest.model}")
        view = folder.view(layers)
        try:
            meter = await _verified(files, progress)
            await in_thread(space.make, _missing_bytes(files), [file.path for file in files], view)
            for name, ours in _by_source(files).items():
                download = _FileDownload(client, manifest.file(name), ours, retries, meter)
                await download.run()
            await in_thread(on_disk, lambda: _link(view, files))
        except DiskFullError as error:
            raise space.full(_missing_bytes(files)) from error
    return view


def _missing_bytes(files: Sequence[PartFile]) -> int:
    return sum(file.missing_bytes() for file in files)


def _by_source(files: Sequence[PartFile]) -> dict[str, list[PartFile]]:
    """Our parts by the coordinator's file that they are of."""
    by_source: dict[str, list[PartFile]] = {}
    for file in files:
        by_source.setdefault(file.part.source.name, []).append(file)
    return by_source


async def _verified(files: Sequence[PartFile], progress: Progress) -> ProgressMeter:
    """Read what is there, which takes minutes from an old disk, and report each piece."""
    total = sum(file.part.size - len(file.part.prefix) for file in files)
    meter, loop = ProgressMeter(total, 0, progress), asyncio.get_running_loop()
    meter.report()

    def found_good(size: int) -> None:
        loop.call_soon_threadsafe(_found_good, meter, size)

    for file in files:
        await in_thread(on_disk, partial(file.verify, found_good))
    return meter


def _found_good(meter: ProgressMeter, size: int) -> None:
    meter.kept(size)
    meter.report()


def _link(view: Path, files: Sequence[PartFile]) -> None:
    names = {file.part.name: file.path for file in files}
    weight_map = {tensor: file.part.name for file in files for tensor in file.part.tensors}
    make_view(view, names, weight_map)


class _FileDownload:
    """Download of one of the coordinator's files into our parts of it."""

    def __init__(
        self,
        client: BlockClient,
        entry: FileEntry,
        parts: Sequence[PartFile],
        retries: Retries,
        meter: ProgressMeter,
    ) -> None:
        self._client = client
        self._entry = entry
        self._parts = parts
        self._retries = retries
        self._meter = meter
        self._block_bytes = parts[0].block_bytes
        self._damaged: Counter[int] = Counter()

    async def run(self) -> None:
        """Fetch all blocks that are missing, and finish the parts, which have been verified."""
        while blocks := self._missing():
            run = _first_run(blocks, max(1, REQUEST_BYTES // self._block_bytes))
            await self._retries(lambda run=run: self._fetch_run(run))  # type: ignore[misc]
        for file in self._parts:
            await in_thread(on_disk, file.finish)

    def _missing(self) -> list[int]:
        return sorted({block for file in self._parts for block in file.missing})

    async def _fetch_run(self, run: range) -> None:
        blocks = self._client.blocks(self._entry, run[0], run[-1], self._block_bytes)
        async with aclosing(blocks):
            async for block, data in blocks:
                if await in_thread(on_disk, lambda: self._take(block, data)):  # noqa: B023
                    self._retries.reset()
                else:
                    self._count_damage(block)
                self._meter.received(len(data))

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
