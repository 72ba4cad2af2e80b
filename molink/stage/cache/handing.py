"""Blocks that a stage has computed, on their way to the stage that it is paired with.

Blocks are copied in the stage's own thread, as they are cached: its next step may write where they
stand. A thread sends them. What cannot be sent is lost, and the other ring computes it: nobody
waits for a pair that is gone.
"""

import logging
import queue
import socket
import threading
import time
from dataclasses import dataclass, field

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import BlockBytes
from molink.errors import FrameError
from molink.stage.cache.pair import RECORD, Blocks, introduce
from molink_scheduler.kv.changes import KeepBlocks, TakeBlocks

log = logging.getLogger(__name__)

WAITING_BYTES_MAX = 256 * 2**20
"""Bytes that wait for the thread; what would be more is lost."""

SEND_S = 10.0
"""Seconds until an end that reads nothing is given up."""

AGAIN_S = 1.0
"""Seconds between two tries to reach the other end, which may load, or start again."""


@dataclass(slots=True)
class HandingPair:
    """End of a pair that hands blocks over, with a thread of its own."""

    path: str
    computes: str
    """What its stage computes (`computed_by`)."""
    block_bytes: int
    """Bytes of a block as the other end takes them: a stage that has taken a neighbour's layers has
    larger ones, and hands nothing over."""
    _epoch: int = field(init=False, default=0)
    _jobs: "queue.SimpleQueue[tuple[Blocks, BlockBytes]]" = field(
        init=False, default_factory=queue.SimpleQueue
    )
    _waiting_bytes: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _link: socket.socket | None = field(init=False, default=None)
    _not_before: float = field(init=False, default=0.0)
    _told: str = field(init=False, default="")

    def __post_init__(self) -> None:
        threading.Thread(target=self._run, name="hand-over", daemon=True).start()

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Be of the ring's epoch."""
        self._epoch = epoch

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Hand over blocks that are computed."""
        for one in change.kept:
            blocks_BW = device.blocks_copied(one.numbers)
            if blocks_BW is not None and blocks_BW.shape[1] == self.block_bytes:
                self._put(
                    Blocks(self._epoch, one.request_id, one.first_block, one.blocks), blocks_BW
                )

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Take nothing: this end hands over."""
        return False

    def _put(self, which: Blocks, blocks_BW: BlockBytes) -> None:
        with self._lock:
            if self._waiting_bytes + blocks_BW.nbytes > WAITING_BYTES_MAX:
                return
            self._waiting_bytes += blocks_BW.nbytes
        self._jobs.put((which, blocks_BW))

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            which, blocks_BW = self._jobs.get()
            try:
                self._send(which, blocks_BW)
            except (OSError, FrameError) as error:
                self._give_up(error)
            finally:
                with self._lock:
                    self._waiting_bytes -= blocks_BW.nbytes

    def _send(self, which: Blocks, blocks_BW: BlockBytes) -> None:
        if self._link is None and time.monotonic() >= self._not_before:
            self._link = self._connected()
        if self._link is not None:
            self._link.sendall(RECORD.pack(*which))
            self._link.sendall(blocks_BW.reshape(-1).data)

    def _connected(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(SEND_S)
            link.connect(self.path)
            introduce(link, self.computes)
            link.settimeout(SEND_S)
        except BaseException:
            link.close()
            raise
        self._told = ""
        return link

    def _give_up(self, error: Exception) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._not_before = None, time.monotonic() + AGAIN_S
        if (why := str(error)) != self._told:
            log.warning("The ring that it is paired with takes no KV, and computes it: %s.", why)
        self._told = why
