"""Keeps to the disk that is lent: makes room by the cap, and says what is missing.

What goes first is what no view leads to: parts of a download that was given up, layers of which
this node was relieved. Then whole views go, the one that was asked for longest ago first, each with
the files that only it led to. What stages run from is never touched.
"""

import math
import shutil
from collections.abc import Iterable
from pathlib import Path

from molink.errors import WeightsError
from molink_agent.weights.source import GIB, WeightsLimits

__all__ = ["Room", "name_of"]


class Room:
    """The weights directory and its disk; `what` is what room is made for, in words."""

    def __init__(self, directory: Path, limits: WeightsLimits, what: str) -> None:
        self._directory = directory
        self._limits = limits
        self._what = what

    def make(self, missing_bytes: int, wanted: Iterable[Path], view: Path) -> None:
        """Make room for `missing_bytes` more. `wanted` files and `view` stay. Raises WeightsError
        when there is none."""
        if self._limits.disk_bytes_max is not None:
            self._evict(missing_bytes, set(wanted), view)
            over = self._used_bytes() + missing_bytes - self._limits.disk_bytes_max
            if over > 0:
                raise WeightsError(
                    f"the disk cap is {gib_text(over)} GiB too small for {self._what}: raise it, "
                    "or ask for fewer layers"
                )
        self.check(missing_bytes)

    def check(self, missing_bytes: int) -> None:
        """Raises WeightsError when the disk has not so much free."""
        free = shutil.disk_usage(self._directory).free - self._limits.disk_reserve_bytes
        if missing_bytes > free:
            raise self.full(missing_bytes - free)

    def full(self, short_bytes: int) -> WeightsError:
        """The error of a disk that is too small by so much."""
        return WeightsError(
            f"the disk of {self._directory} is {gib_text(short_bytes)} GiB short of {self._what} "
            f"(with {gib_text(self._limits.disk_reserve_bytes)} GiB to spare); what has come is "
            "kept: free that much and start again"
        )

    def full_after_all(self, missing_bytes: int) -> WeightsError:
        """The error when the disk filled up while it was written to."""
        free = shutil.disk_usage(self._directory).free - self._limits.disk_reserve_bytes
        return self.full(max(missing_bytes - free, 1))

    def _evict(self, missing_bytes: int, wanted: set[Path], view: Path) -> None:
        cap = self._limits.disk_bytes_max
        assert cap is not None
        kept = {view.resolve(), *(one.resolve() for one in self._limits.keep)}
        if self._used_bytes() + missing_bytes > cap:
            self._remove_orphans(wanted)
        for old in sorted(self._views(), key=lambda one: one.stat().st_mtime_ns):
            if self._used_bytes() + missing_bytes <= cap:
                return
            if old.resolve() not in kept:
                self._remove_view(old, wanted)

    def _views(self) -> list[Path]:
        return [one for one in self._directory.glob("models/*/layers-*") if one.is_dir()]

    def _remove_view(self, view: Path, wanted: set[Path]) -> None:
        targets = {link.resolve() for link in view.iterdir() if link.is_symlink()}
        shutil.rmtree(view)
        for target in targets - self._linked() - {path.resolve() for path in wanted}:
            target.unlink(missing_ok=True)
        self._remove_orphans(wanted)
        if not self._views_of(view.parent) and not any(
            path.is_relative_to(view.parent) for path in wanted
        ):
            shutil.rmtree(view.parent)

    def _views_of(self, folder: Path) -> list[Path]:
        return [one for one in self._views() if one.parent == folder]

    def _remove_orphans(self, wanted: set[Path]) -> None:
        """Parts, with their journals, that neither a view nor this download wants."""
        linked = self._linked()
        names = {path.resolve() for path in wanted} | linked
        for path in self._directory.glob("models/*/parts/*"):
            owner = path.with_name(path.name.removesuffix(".journal").removesuffix(".partial"))
            if owner.resolve() not in names:
                path.unlink(missing_ok=True)

    def _linked(self) -> set[Path]:
        return {link.resolve() for view in self._views() for link in view.iterdir()}

    def _used_bytes(self) -> int:
        """What all weights take on the disk."""
        found = (path for path in self._directory.rglob("*") if not path.is_symlink())
        return sum(path.stat().st_size for path in found if path.is_file())


def name_of(layers: range) -> str:
    """For people."""
    return f"layers {layers.start} to {layers.stop - 1}"


def gib_text(size: float) -> str:
    """Rounded up to a tenth, so that freeing what is printed is enough."""
    return f"{math.ceil(size / GIB * 10) / 10:.1f}"
