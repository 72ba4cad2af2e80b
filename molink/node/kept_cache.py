"""Files of a node's cached KV that outlive its stage's process, so that the next one finds them.

Both have no names, so they are gone with the node's own process, however that ends, and the key to
them is in its memory alone. A stage opens them by way of this process (`/proc`), which only the
same user may do, and only on Linux; elsewhere, and where that fails, a stage has a file of its own
that ends with it. Files with names and a key beside them were rejected: a PC that loses its power
would keep what others have asked.
"""

import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from molink.stage_protocol.cache_room import CacheRoom, KeptFiles
from molink.stage_protocol.messages import LoadStage


@dataclass(slots=True)
class KeptCache:
    """Files and key of one node, from the first stage that has room on the disk until `forget`."""

    _files: tuple[IO[bytes], ...] = ()
    _key: str = ""
    _starts: int = field(init=False, default=0)
    """Processes that were given the key."""

    def lent(self, load: LoadStage) -> LoadStage:
        """The command to a new process, with the files."""
        room = load.cache_room
        if room is None or not room.disk_bytes or not Path("/proc/self/fd").is_dir():
            return load
        with suppress(OSError):  # The stage tells what is wrong with its folder.
            return replace(load, cache_room=self._with_files(room))
        return load

    def _with_files(self, room: CacheRoom) -> CacheRoom:
        if not self._files:
            folder = Path(room.folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._files = tuple(tempfile.TemporaryFile(dir=folder) for _ in "12")  # noqa: SIM115
            self._key = secrets.token_hex(32)
        self._starts += 1
        blocks, index = (f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files)
        return replace(room, kept=KeptFiles(blocks, index, self._key, self._starts))

    def forget(self) -> None:
        """Give the disk back once no process has the files open, and forget the key."""
        for file in self._files:
            file.close()
        self._files, self._key = (), ""
