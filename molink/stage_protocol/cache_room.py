"""Room that the owner of a PC lends a stage for cached KV, beside its device's memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """Memory that the owner lends for cached KV beside the device's."""

    ram_bytes: int = 0
    """Bytes of host memory."""
    disk_bytes: int = 0
    folder: str = ""
    """Folder where a file without a name is made."""

    def shared_by(self, stages: int) -> "CacheRoom":
        """The part of one of so many stages."""
        return CacheRoom(self.ram_bytes // stages, self.disk_bytes // stages, self.folder)
