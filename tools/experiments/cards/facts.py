"""What is this machine, as far as a stage cares?

    python -m tools.experiments.cards.facts --out DIR

The first thing to run on a card: whatever is missing here explains what fails later. NVML is asked
beside torch, since the agent asks the one and stages the other: they have to mean the same card.
"""

import os
import platform
import shutil
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pynvml
import torch

from molink.engine.device.card import Card
from molink.engine.device.streams import HostMemory
from molink.hardware.torch_builds import has_code
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

PACKAGES = ("torch", "triton", "transformers", "numpy")

PINNED_BYTES = 2**28
"""More than a stage pins, by far."""

GIB = 2**30


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print what a stage would find."""
    on = torch.device(device)
    keep(out, "facts", on, (*_host(), *(_card(Card(on)) if on.type == "cuda" else ())))


def _host() -> Iterator[Figure]:
    yield Figure("Python", platform.python_version())
    for name in PACKAGES:
        yield Figure(name, _version(name))
    yield Figure("cores", float(os.cpu_count() or 0), low=1)
    compiler = next(filter(None, map(shutil.which, ("gcc", "clang"))), None)
    yield Figure("C compiler", compiler or "none: no kernels of ours")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    yield Figure("Python's headers", "there" if header.is_file() else "missing")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _card(card: Card) -> Iterator[Figure]:
    major, minor = card.capability
    yield Figure("card", card.name)
    yield Figure("capability", f"{major}.{minor}")
    yield Figure("driver", float(card.driver or 0), low=525)
    has = "yes" if has_code((major, minor), card.architectures) else "no"
    yield Figure("torch has code for it", f"{has}: {' '.join(card.architectures)}")
    yield Figure("multiplies bfloat16", str(card.multiplies_bfloat16))
    card.try_step()
    yield Figure("memory", card.total_bytes / GIB, "GiB")
    yield Figure("free", card.free_bytes / GIB, "GiB")
    memory = HostMemory(pins=True)
    memory.empty((PINNED_BYTES,), torch.uint8)
    yield Figure("256 MB pinned", memory.refusal or "yes")
    held = card.bytes_by_process()
    seen = "not told" if held is None else "yes" if os.getpid() in held else "others only"
    yield Figure("NVML sees this process", seen)
    yield from _order(card.count)


def _order(count: int) -> Iterator[Figure]:
    """Whether torch and NVML count cards alike."""
    ours = [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(count))
        theirs = [str(pynvml.nvmlDeviceGetUUID(one)).removeprefix("GPU-") for one in handles]
    except pynvml.NVMLError as error:
        theirs = [str(error)]
    yield Figure("NVML counts cards as torch does", "yes" if ours == theirs else f"no: {theirs}")
    peers = [torch.cuda.can_device_access_peer(0, other) for other in range(1, count)]
    yield Figure("cards that reach each other's memory", f"{sum(peers)} of {len(peers)} others")


if __name__ == "__main__":
    main()
