"""Fetches whole files from the hub on which the model was published.

The hub's own client fetches them, with its own resume, into a cache under the weights directory. It
names large files by their SHA-256, which the hub gives as their etag; we compare that, since the
client compares sizes only. A checkpoint that is one file is fetched whole: the hub gives ranges,
but no checksums of them.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.checkpoint.checkpoint import INDEX, SINGLE, SMALL_FILES, Checkpoint, open_hub_checkpoint
from molink.checkpoint.safetensors_header import read_header
from molink.checkpoint.shard_plan import ShardPlan, WeightsLayout, plan_shards, shape_of
from molink.errors import WeightsError
from molink_agent.weights.source import (
    Downloaded,
    HubSource,
    Progress,
    ProgressMeter,
    WeightsLimits,
)
from molink_agent.weights.weights_dir import (
    DiskSpace,
    ModelFolder,
    in_thread,
    layers_text,
    make_view,
)

LARGE_FILE_NAME = re.compile(r"[0-9a-f]{64}")
"""Name of a large file in the client's cache, a SHA-256. Small files have shorter names."""

READ_BYTES = 2**20

FETCHES = 2
"""Times that a file is fetched while its checksum is wrong."""

VERIFYING_SHARE = 0.1
"""Time to verify bytes, as a part of that to fetch them: minutes of it show as progress."""

StagePart = tuple[range, bool]
"""Layers of a stage, and whether it holds the checkpoint's drafting layer as well."""

Counted = Callable[[int], None]
"""Callback with a number of bytes."""


async def fetch_from_hub(
    source: HubSource, part: StagePart, directory: Path, limits: WeightsLimits, progress: Progress
) -> Path:
    """Fetch the weights of a stage as `ensure_weights` does, from the hub."""
    checkpoint = await in_thread(
        open_hub_checkpoint, source.model, directory / "hub", limits.disk_bytes_max
    )
    shape, (layers, _) = shape_of(checkpoint.config()), part
    names = await in_thread(_files_of, checkpoint, shape, part)
    sizes = {name: await in_thread(_size, checkpoint, name) for name in names}
    view = ModelFolder.of(directory, source.model, checkpoint.directory.name).view(layers)
    space = DiskSpace(directory, limits, f"{layers_text(layers)} of {source.model}")
    there = {name: size for name, (size, cached) in sizes.items() if cached}
    missing = sum(size for size, _ in sizes.values()) - sum(there.values())
    await in_thread(space.make, missing, [], view)
    total = (1 + VERIFYING_SHARE) * (missing + sum(there.values()))
    meter = ProgressMeter(int(total), sum(there.values()), progress)
    meter.report()
    counts = _Counts(meter, asyncio.get_running_loop())
    paths = {name: await in_thread(_fetch, checkpoint, name, counts) for name in names}
    plan = await in_thread(_plan, paths, shape, part)
    await in_thread(_show, view, checkpoint, plan, paths)
    progress(Downloaded(1.0, int(total)))
    return view


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts of what has come and what was verified, for a thread to add to."""

    meter: ProgressMeter
    loop: asyncio.AbstractEventLoop

    def received(self, size: int) -> None:
        """Count bytes that have come."""
        self.loop.call_soon_threadsafe(self._received, size)

    def verified(self, size: int) -> None:
        """Count bytes that were read again."""
        self.loop.call_soon_threadsafe(self._verified, size)

    def _received(self, size: int) -> None:
        self.meter.kept(size)
        self.meter.received(size)

    def _verified(self, size: int) -> None:
        self.meter.kept(int(VERIFYING_SHARE * size))
        self.meter.report()


def _files_of(checkpoint: Checkpoint, shape: WeightsLayout, part: StagePart) -> list[str]:
    """Weight files that hold something of these layers; a single file holds all."""
    if not (checkpoint.directory / INDEX).is_file():
        return [SINGLE]
    return [need.name for need in plan_shards(checkpoint.weight_map(), shape, *part).files]


def _size(checkpoint: Checkpoint, name: str) -> tuple[int, bool]:
    """Bytes of a file, and whether it is here; zero where the hub does not say."""
    from huggingface_hub import hf_hub_download

    assert checkpoint.hub_id is not None
    try:
        facts = hf_hub_download(checkpoint.hub_id, name, cache_dir=checkpoint.cache, dry_run=True)
    except (OSError, ValueError):
        return 0, False  # the fetch itself will say what is wrong
    return facts.file_size or 0, facts.is_cached


def _fetch(checkpoint: Checkpoint, name: str, counts: _Counts) -> Path:
    """A file of the right checksum."""
    for attempt in range(FETCHES):
        path = checkpoint.weight_file(name, bar_class(counts.received), again=attempt > 0)
        if _is_right(path, counts.verified):
            return path
    raise WeightsError(
        f"{name} of {checkpoint.name} came damaged {FETCHES} times from the hub: try again later"
    )


def _is_right(path: Path, verified: Counted) -> bool:
    """Whether a file is what the hub's etag says; true where the etag is no checksum."""
    name = path.resolve().name
    if not LARGE_FILE_NAME.fullmatch(name):
        return True
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
            verified(len(data))
    return digest.hexdigest() == name


def bar_class(received: Counted) -> type[Any]:
    """Class that the hub's client takes for a progress bar."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """Progress bar that draws nothing and counts bytes."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            """Count the bytes that have come."""
            received(int(n or 0))

    return Bar


def _plan(paths: dict[str, Path], shape: WeightsLayout, part: StagePart) -> ShardPlan:
    """Plan of the files and tensors that the layers need, by what the files really hold."""
    weight_map = {
        tensor.name: name for name, path in paths.items() for tensor in read_header(path).tensors
    }
    return plan_shards(weight_map, shape, *part)


def _show(view: Path, checkpoint: Checkpoint, plan: ShardPlan, paths: dict[str, Path]) -> None:
    small = {
        path.name: path.resolve()
        for pattern in SMALL_FILES
        for path in checkpoint.directory.glob(pattern)
        if path.name != INDEX
    }
    held = {need.name: paths[need.name].resolve() for need in plan.files}
    make_view(view, {**small, **held}, plan.weight_map)
