"""Blocks that the stage of another ring has computed, until this stage's ring takes them.

They wait in main memory, by the request there, and are taken as cached blocks are that come back
from a lower tier: sure first, then copied in layer by layer beside steps. The last ones may still
be on their way when they are asked for, so they are waited for; not where the other end is gone, or
has sent later ones of the request. What has not come the ring computes.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import BlockBytes
from molink.errors import FrameError
from molink.stage.cache.pair import (
    ANSWER,
    ANSWER_S,
    HELLO,
    MAGIC,
    RECORD,
    RECORD_BLOCKS_MAX,
    Blocks,
    read_exactly,
    read_struct,
    read_text,
    text_of,
)
from molink_scheduler.kv.changes import Fetched, KeepBlocks, TakeBlocks

log = logging.getLogger(__name__)

HELD_BYTES_MAX = 512 * 2**20
"""Bytes of blocks that nobody has taken yet, at most; the oldest request's make room."""

HELD_S = 60.0
"""Seconds until blocks that nobody has taken are nobody's: their request was cancelled, or went to
another ring."""

WAIT_S = 2.0
"""Longest wait for blocks that are on their way within one PC; the head waits for 5 s."""

Source = tuple[int, int]
"""Epoch of the other ring, and its request."""


@dataclass(slots=True)
class _Handed:
    """Blocks of one request, by their index in its prompt."""

    came_at: float
    blocks: dict[int, BlockBytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Take:
    change: TakeBlocks
    arriving: BlocksIn


@dataclass(slots=True)
class TakingPair:
    """End of a pair that takes what the other one hands over. Made by `listening`."""

    computes: str
    """What its stage computes (`computed_by`), as the other one has to."""
    block_bytes: int
    fetched: Callable[[Fetched], None]
    """Called in the thread when blocks are sure."""
    _is_same: bool = field(init=False, default=True)
    """Whether the stage still has the layers that the pair agreed on."""
    _handed: dict[Source, _Handed] = field(init=False, default_factory=dict)
    """Oldest first."""
    _held_bytes: int = field(init=False, default=0)
    _links: int = field(init=False, default=0)
    _was_there: bool = field(init=False, default=False)
    """Whether the other end has ever spoken; before, it may be about to."""
    _is_halting: bool = field(init=False, default=False)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)
    _jobs: "queue.SimpleQueue[_Take | threading.Event]" = field(
        init=False, default_factory=queue.SimpleQueue
    )

    @classmethod
    def listening(
        cls, path: str, computes: str, block_bytes: int, fetched: Callable[[Fetched], None]
    ) -> "TakingPair":
        """The end that listens at a path from now on. Raises OSError where that cannot be."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        Path(path).unlink(missing_ok=True)  # That of the process before.
        listener.bind(path)
        listener.listen()
        pair = cls(computes, block_bytes, fetched)
        threading.Thread(target=pair._fill, name="taking", daemon=True).start()
        threading.Thread(
            target=pair._accept, args=(listener,), name="listening", daemon=True
        ).start()
        return pair

    # -- in the stage's thread ------------------------------------------------------------------

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Fill nothing any more of the epoch before; with other layers, nothing at all."""
        done = threading.Event()
        self._halt(is_halting=True)
        self._jobs.put(done)
        done.wait()
        self._halt(is_halting=False)
        self._is_same = block_bytes == self.block_bytes

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Hand nothing over: this end takes."""

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Fill blocks as soon as they have come."""
        if self._is_same:
            self._jobs.put(_Take(change, arriving))
        return self._is_same

    def _halt(self, *, is_halting: bool) -> None:
        with self._changed:
            self._is_halting = is_halting
            self._changed.notify_all()

    # -- in the thread that fills ---------------------------------------------------------------

    def _fill(self) -> None:
        while True:
            job = self._jobs.get()
            if isinstance(job, threading.Event):
                job.set()
                continue
            try:
                self._bring(job)
            except Exception as error:  # Whatever it was: the stage's loop raises it.
                job.arriving.end(error)

    def _bring(self, job: _Take) -> None:
        change, arriving = job.change, job.arriving
        found = self._found(change.source, change.first_block, len(arriving.numbers))
        is_wanted = arriving.only(len(found))
        self.fetched(Fetched(change.fetch_id, len(found)))
        arriving.fill(found if is_wanted else [])

    def _found(self, source: Source, first: int, count: int) -> list[BlockBytes]:
        """Blocks of a request from the first on, as many as come, which are held no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(source, first, count), WAIT_S)
            handed = self._forget(source)
        found: list[BlockBytes] = []
        while len(found) < count and (block_W := handed.get(first + len(found))) is not None:
            found.append(block_W)
        return found

    def _is_settled(self, source: Source, first: int, count: int) -> bool:
        blocks = self._handed[source].blocks if source in self._handed else {}
        missing = next((one for one in range(first, first + count) if one not in blocks), None)
        return (
            missing is None
            or (self._was_there and not self._links)
            or self._is_halting
            or any(one > missing for one in blocks)
        )

    def _forget(self, source: Source) -> dict[int, BlockBytes]:
        handed = self._handed.pop(source, None)
        if handed is None:
            return {}
        self._held_bytes -= len(handed.blocks) * self.block_bytes
        return handed.blocks

    # -- in the threads that listen -------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            link, _ = listener.accept()
            threading.Thread(
                target=self._read, args=(link,), name="handed over", daemon=True
            ).start()

    def _read(self, link: socket.socket) -> None:
        """Take what comes over one link, until it ends."""
        with link, suppress(OSError):
            try:
                self._let_in(link)
            except FrameError as error:
                log.warning("KV that is handed over is not taken: %s.", error)
                return
            self._count_links(1)
            try:
                while True:
                    self._take_record(link)
            except FrameError as error:
                log.warning("KV that is handed over is taken no more: %s.", error)
            finally:
                self._count_links(-1)

    def _let_in(self, link: socket.socket) -> None:
        link.settimeout(ANSWER_S)
        magic, theirs = read_struct(link, HELLO)
        if magic != MAGIC:
            raise FrameError("what came is from no stage")
        if read_text(theirs) != read_text(text_of(self.computes)):
            self._was_there = True
            why = f"one stage has {read_text(theirs)}, and the other {self.computes}"
            link.sendall(ANSWER.pack(False, text_of(why)))
            raise FrameError(why)
        link.sendall(ANSWER.pack(True, b""))
        link.settimeout(None)

    def _count_links(self, more: int) -> None:
        with self._changed:
            self._links += more
            self._was_there = True
            self._changed.notify_all()

    def _take_record(self, link: socket.socket) -> None:
        which = Blocks(*read_struct(link, RECORD))
        record_bytes = which.blocks * self.block_bytes
        if not 0 < which.blocks <= RECORD_BLOCKS_MAX or record_bytes > HELD_BYTES_MAX:
            raise FrameError(f"a record of {which.blocks:,} blocks")
        blocks_BW = np.empty((which.blocks, self.block_bytes), np.uint8)
        read_exactly(link, blocks_BW.reshape(-1).data)
        self._keep(which, blocks_BW)

    def _keep(self, which: Blocks, blocks_BW: BlockBytes) -> None:
        source, now = (which.epoch, which.request_id), time.monotonic()
        with self._changed:
            handed = self._handed.setdefault(source, _Handed(now))
            for place, block_W in enumerate(blocks_BW, which.first):
                self._held_bytes += (place not in handed.blocks) * self.block_bytes
                handed.blocks[place] = block_W
            self._make_room(source, now)
            self._changed.notify_all()

    def _make_room(self, newest: Source, now: float) -> None:
        for source, handed in list(self._handed.items()):
            is_old = now - handed.came_at > HELD_S and source != newest
            if is_old or self._held_bytes > HELD_BYTES_MAX:
                self._forget(source)
