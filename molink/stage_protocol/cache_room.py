"""Room that the owner of a PC lends a stage for cached KV, beside its device's memory."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Annotated

from annotated_types import Ge, Lt


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """Files without names that a node keeps for its stage's cached KV, whichever process it is."""

    blocks: str
    """Path by which the stage opens the file of sealed blocks."""
    index: str
    key: str = field(repr=False)
    """Key to both, in hexadecimal digits."""
    start: Annotated[int, Ge(0), Lt(2**32)] = 0
    """Number of the stage's process among those that were given the key."""

    def for_layers(self, identity: bytes) -> "KeptFiles":
        """The same with the key of those who compute the same KV, and of nobody else."""
        own = hashlib.blake2b(identity, key=bytes.fromhex(self.key), digest_size=32)
        return replace(self, key=own.hexdigest())


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
    kept: KeptFiles | None = None
    """Files that outlive the stage's process; None: its file ends with it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lent."""
        return self.ram_bytes == 0 and not self.disk_bytes

    def shared_by(self, stages: int) -> "CacheRoom":
        """The part of one of so many stages."""
        ram = None if self.ram_bytes is None else self.ram_bytes // stages
        return replace(self, ram_bytes=ram, disk_bytes=self.disk_bytes // stages, stages=stages)
