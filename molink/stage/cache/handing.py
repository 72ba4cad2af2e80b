"""Blocks that a stage has computed, on their way to the stage that it is paired with.

Blocks are copied in the stage's own thread, as they are cached: its next step may write where they
stand. A thread sends them. What cannot be sent is lost, and the other ring computes it: nobody
waits for a pair that is gone.
"""

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import BlockBytes
from molink.errors import FrameError
from molink.printable import printable_line
from molink.stage.cache.pair import RECORD, Blocks, PairSocket, give_way, introduce
from molink.stage.cache.pair_figures import PairFigures
from molink.stage.cache.pair_sockets import SEND_S, Reach, reach_of
from molink.stage_protocol.health import REASON_CHARS_MAX, PairHealth
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.kv.changes import KeepBlocks, TakeBlocks

log = logging.getLogger(__name__)

WAITING_BYTES_MAX = 256 * 2**20
"""Bytes that wait for the thread; what would be more is lost."""

AGAIN_S = 1.0
"""Seconds between two tries to reach the other end, which may load, or start again."""


class _Job(NamedTuple):
    which: Blocks
    blocks_BW: BlockBytes


@dataclass(slots=True)
class HandingPair:
    """End of a pair that hands blocks over, with a thread of its own. Over a LAN it is linked
    before it has anything to send: prompts are given to its ring only then."""

    pairing: Pairing
    computes: str
    """What its stage computes (`computed_by`)."""
    block_bytes: int
    """Bytes of a block as the other end takes them: a stage that has taken a neighbour's layers has
    larger ones, and hands nothing over."""
    _reach: Reach = field(init=False)
    _epoch: int = field(init=False, default=0)
    _jobs: "queue.SimpleQueue[_Job | None]" = field(init=False, default_factory=queue.SimpleQueue)
    _figures: PairFigures = field(init=False, default_factory=PairFigures)
    _link: PairSocket | None = field(init=False, default=None)
    _not_before: float = field(init=False, default=0.0)
    _last_warning: str = field(init=False, default="")
    _is_closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._reach = reach_of(self.pairing)
        threading.Thread(target=self._run, name="hand-over", daemon=True).start()

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Be of the ring's epoch."""
        self._epoch = epoch

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Hand over blocks that are computed."""
        for one in change.kept:
            blocks_BW = device.blocks_copied(one.numbers)
            if blocks_BW is not None and blocks_BW.shape[1] == self.block_bytes:
                which = Blocks(self._epoch, one.request_id, one.first_block, one.blocks)
                self._put(_Job(which, blocks_BW))

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Take nothing: this end hands over."""
        return False

    def close(self) -> None:
        """Send nothing any more, from now on."""
        self._is_closed = True
        self._jobs.put(None)

    @property
    def health(self) -> PairHealth:
        """What it has handed over so far."""
        link, why = self.pairing.link, self._last_warning[:REASON_CHARS_MAX]
        port = link.port if link is not None else 0
        return self._figures.health(self.pairing, linked=self._link is not None, port=port, why=why)

    def _put(self, job: _Job) -> None:
        if self._figures.held_bytes + job.blocks_BW.nbytes > WAITING_BYTES_MAX:
            self._figures.lost(job.which.blocks)
            return
        self._figures.hold(job.blocks_BW.nbytes)
        self._jobs.put(job)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        give_way()
        while not self._is_closed:
            try:
                job = self._next()
                if job is not None:
                    self._send(job)
            except (OSError, FrameError) as error:
                self._give_up(error)
        if self._link is not None:
            self._link.close()
            self._link = None

    def _next(self) -> _Job | None:
        """What is to be sent next; over a LAN the other end is looked for meanwhile."""
        is_looking = self.pairing.link is not None and self._link is None
        if is_looking:
            self._connect()
        try:
            return self._jobs.get(timeout=AGAIN_S if is_looking else None)
        except queue.Empty:
            return None

    def _send(self, job: _Job) -> None:
        began, is_sent = time.monotonic(), False
        try:
            self._connect()
            if self._link is not None:
                self._link.sendall(RECORD.pack(*job.which))
                self._link.sendall(job.blocks_BW.reshape(-1).data)
                is_sent = True
        finally:
            self._figures.hold(-job.blocks_BW.nbytes)
            if is_sent:
                spent_s = time.monotonic() - began
                self._figures.moved(job.which.blocks, job.blocks_BW.nbytes, spent_s)
            else:
                self._figures.lost(job.which.blocks)

    def _connect(self) -> None:
        """Reach the other end, unless it was looked for just now."""
        if self._link is not None or time.monotonic() < self._not_before:
            return
        link = self._reach()
        try:
            introduce(link, self.computes)
            link.settimeout(SEND_S)
        except BaseException:
            link.close()
            raise
        self._link, self._last_warning = link, ""

    def _give_up(self, error: Exception) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._not_before = None, time.monotonic() + AGAIN_S
        if (why := printable_line(str(error))) != self._last_warning:
            log.warning("The ring that it is paired with takes no KV, and computes it: %s.", why)
        self._last_warning = why
