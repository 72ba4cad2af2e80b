"""Dependency of the simulator on MoLink of the same release, written when it is built.

The simulator drives the core of the release that it came with: with another it may say what no ring
does.
"""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameRelease(MetadataHookInterface):
    """Hook of the build backend."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the dependency; the version is there already."""
        metadata["dependencies"] = [f"molink=={metadata['version']}"]
