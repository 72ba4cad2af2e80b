"""Sees to it that the weights of some layers are on this disk."""

from pathlib import Path

from molink.checkpoint.shard_plan import plan_shards
from molink_agent.weights.block_client import open_client
from molink_agent.weights.download import download
from molink_agent.weights.hub import fetch_from_hub
from molink_agent.weights.layout import parts_of
from molink_agent.weights.lock import only_one
from molink_agent.weights.part_file import PartFile
from molink_agent.weights.patience import Patience
from molink_agent.weights.progress import ProgressMeter
from molink_agent.weights.room import Room, name_of
from molink_agent.weights.source import CoordinatorSource, Progress, Source, WeightsLimits
from molink_agent.weights.threads import DiskFullError, in_thread, on_disk
from molink_agent.weights.views import ModelFolder, make_view

__all__ = ["ensure_weights"]


def _silent(fraction: float, bytes_per_s: float) -> None:
    pass


async def ensure_weights(
    source: Source,
    layers: range,
    directory: Path,
    limits: WeightsLimits | None = None,
    progress: Progress = _silent,
) -> Path:
    """Fetch what the stage of `layers` needs and `directory` does not hold yet; return the
    checkpoint directory to load it from.

    `directory` is for weights only and may hold several models. Everything that the returned
    directory leads to has been compared with its checksum in this call. May be called again at any
    time, with other layers too, and after any kind of end; what has come and is good is not fetched
    twice. Raises MolinkError with one sentence: WeightsError (disk, network, damage, a wrong
    token), UserError for layers that the model does not have.
    """
    limits = limits or WeightsLimits()
    with only_one(directory) as root:
        if isinstance(source, CoordinatorSource):
            return await _from_coordinator(source, layers, root, limits, progress)
        return await fetch_from_hub(source, layers, root, limits, progress)


async def _from_coordinator(
    source: CoordinatorSource,
    layers: range,
    directory: Path,
    limits: WeightsLimits,
    progress: Progress,
) -> Path:
    async with open_client(source) as client:
        patience = Patience(limits)
        manifest = await patience(client.manifest)
        plan = await in_thread(plan_shards, manifest.weight_map(), manifest.shape, layers)
        folder = ModelFolder.of(directory, manifest.model, manifest.revision)
        parts = await in_thread(parts_of, manifest, plan)
        files = [PartFile(folder.parts, part, manifest.block_bytes) for part in parts]
        room = Room(directory, limits, f"{name_of(layers)} of {manifest.model}")
        view = folder.view(layers)
        try:
            await _verify(files)
            await in_thread(room.make, _missing(files), [file.path for file in files], view)
            await download(client, manifest, files, patience, _meter(files, progress))
            await in_thread(on_disk, lambda: _show(view, files))
        except DiskFullError as error:
            raise room.full_after_all(_missing(files)) from error
    return view


async def _verify(files: list[PartFile]) -> None:
    """Find out which pieces are there and good."""
    for file in files:
        await in_thread(on_disk, file.verify)


def _missing(files: list[PartFile]) -> int:
    return sum(file.missing_bytes() for file in files)


def _meter(files: list[PartFile], progress: Progress) -> ProgressMeter:
    total = sum(file.part.size - len(file.part.prefix) for file in files)
    meter = ProgressMeter(total, total - _missing(files), progress)
    meter.tell()
    return meter


def _show(view: Path, files: list[PartFile]) -> None:
    names = {file.part.name: file.path for file in files}
    weight_map = {tensor: file.part.name for file in files for tensor in file.part.tensors}
    make_view(view, names, weight_map)
