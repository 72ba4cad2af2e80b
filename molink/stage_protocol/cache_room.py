"""Room that the owner of a PC lends a stage for cached KV, beside its device's memory."""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """Memory that the owner lends for cached KV beside the device's."""

    ram_bytes: int | None = 0
    """Bytes of host memory, at most; None: a share of what is idle."""
    disk_bytes: int = 0
    folder: str = ""
    """Folder where a file without a name is made."""
    stages: Annotated[int, Ge(1)] = 1
    """Number of stages that share what is idle on the PC."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lent."""
        return self.ram_bytes == 0 and not self.disk_bytes

    def shared_by(self, stages: int) -> "CacheRoom":
        """The part of one of so many stages."""
        ram = None if self.ram_bytes is None else self.ram_bytes // stages
        return replace(self, ram_bytes=ram, disk_bytes=self.disk_bytes // stages, stages=stages)
