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
    PairSocket,
    give_way,
    read_exactly,
    read_struct,
    read_text,
    text_of,
)
from molink.stage.cache.pair_figures import PairFigures
from molink.stage.cache.pair_sockets import Door, door_of
from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.kv.changes import Fetched, KeepBlocks, TakeBlocks

log = logging.getLogger(__name__)

HELD_BYTES_MAX = 512 * 2**20
"""Bytes of blocks that nobody has taken yet, at most; the oldest request's make room."""

HELD_S = 60.0
"""Seconds until blocks that nobody has taken are nobody's: their request was cancelled, or went to
another ring."""

WAIT_S = 2.0
"""Longest wait for blocks that are on their way within a PC or a LAN; the head waits for 5 s."""

LINKS_MAX = 8
"""Links at a time, of which one is the other end's: a further one is closed at once."""

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

    pairing: Pairing
    door: Door
    computes: str
    """What its stage computes (`computed_by`), as the other one has to."""
    block_bytes: int
    fetched: Callable[[Fetched], None]
    """Called in the thread when blocks are sure."""
    _is_same: bool = field(init=False, default=True)
    """Whether the stage still has the layers that the pair agreed on."""
    _handed: dict[Source, _Handed] = field(init=False, default_factory=dict)
    """Oldest first."""
    _figures: PairFigures = field(init=False, default_factory=PairFigures)
    _open: set[socket.socket] = field(init=False, default_factory=set)
    """Sockets of all who have connected."""
    _links: int = field(init=False, default=0)
    _was_there: bool = field(init=False, default=False)
    """Whether the other end has ever spoken; before, it may be about to."""
    _is_halting: bool = field(init=False, default=False)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)
    _jobs: "queue.SimpleQueue[_Take | threading.Event | None]" = field(
        init=False, default_factory=queue.SimpleQueue
    )
    _is_closed: bool = field(init=False, default=False)

    @classmethod
    def listening(
        cls,
        pairing: Pairing,
        address: str,
        computes: str,
        block_bytes: int,
        fetched: Callable[[Fetched], None],
    ) -> "TakingPair":
        """The end that listens from now on, over a LAN at this address. Raises OSError where that
        cannot be."""
        pair = cls(pairing, door_of(pairing, address), computes, block_bytes, fetched)
        for name, run in (("taking", pair._fill), ("listening", pair._accept)):
            threading.Thread(target=run, name=name, daemon=True).start()
        return pair

    # -- in the stage's thread ------------------------------------------------------------------

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Fill nothing any more of the epoch before; with other layers, nothing at all."""
        self._finish()
        self._halt(is_halting=False)
        self._is_same = block_bytes == self.block_bytes

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Hand nothing over: this end takes."""

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Fill blocks as soon as they have come."""
        if self._is_same:
            self._jobs.put(_Take(change, arriving))
        return self._is_same

    def close(self) -> None:
        """Listen no more, and end all links; what has been asked for is filled with what came."""
        self._is_closed = True
        self.door.close()
        with self._changed:
            for link in self._open:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
        self._finish()
        self._jobs.put(None)

    @property
    def health(self) -> PairHealth:
        """What it has taken so far."""
        return self._figures.health(self.pairing, linked=self._links > 0, port=self.door.port)

    def _finish(self) -> None:
        """Fill what has been asked for with what has come, and return when that is done."""
        done = threading.Event()
        self._halt(is_halting=True)
        self._jobs.put(done)
        done.wait()

    def _halt(self, *, is_halting: bool) -> None:
        with self._changed:
            self._is_halting = is_halting
            self._changed.notify_all()

    # -- in the thread that fills ---------------------------------------------------------------

    def _fill(self) -> None:
        give_way()
        while True:
            job = self._jobs.get()
            if job is None:
                return
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
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(source, first, count), WAIT_S)
            handed = self._forget(source)
        found: list[BlockBytes] = []
        while len(found) < count and (block_W := handed.get(first + len(found))) is not None:
            found.append(block_W)
        self._figures.taken(len(found), count - len(found), time.monotonic() - began)
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
        self._figures.hold(-len(handed.blocks) * self.block_bytes)
        return handed.blocks

    # -- in the threads that listen -------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                link = self.door.accept()
            except OSError:  # It is closed, or who came has gone.
                continue
            if not self._note_open(link):
                link.close()
                continue
            threading.Thread(
                target=self._read, args=(link,), name="handed over", daemon=True
            ).start()

    def _note_open(self, link: socket.socket) -> bool:
        """Count one who has connected; False: there are too many, or none is wanted any more."""
        with self._changed:
            if self._is_closed or len(self._open) >= LINKS_MAX:
                return False
            self._open.add(link)
            return True

    def _read(self, link: socket.socket) -> None:
        """Take what comes over one link, until it ends."""
        give_way()
        try:
            self._read_open(link)
        finally:
            with self._changed:
                self._open.discard(link)
            link.close()

    def _read_open(self, connected: socket.socket) -> None:
        try:
            link = self.door.let_in(connected)
            self._let_in(link)
        except OSError:
            return
        except FrameError as error:
            log.warning("KV that is handed over is not taken: %s.", error)
            return
        self._count_links(1)
        try:
            while True:
                self._take_record(link)
        except OSError:
            return
        except FrameError as error:
            log.warning("KV that is handed over is taken no more: %s.", error)
        finally:
            self._count_links(-1)

    def _let_in(self, link: PairSocket) -> None:
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

    def _take_record(self, link: PairSocket) -> None:
        which = Blocks(*read_struct(link, RECORD))
        record_bytes = which.blocks * self.block_bytes
        if not 0 < which.blocks <= RECORD_BLOCKS_MAX or record_bytes > HELD_BYTES_MAX:
            raise FrameError(f"a record of {which.blocks:,} blocks")
        blocks_BW = np.empty((which.blocks, self.block_bytes), np.uint8)
        read_exactly(link, blocks_BW.reshape(-1).data)
        self._keep(which, blocks_BW)

    def _keep(self, which: Blocks, blocks_BW: BlockBytes) -> None:
        source, now = (which.epoch, which.request_id), time.monotonic()
        self._figures.moved(which.blocks, blocks_BW.nbytes)
        with self._changed:
            handed = self._handed.setdefault(source, _Handed(now))
            for place, block_W in enumerate(blocks_BW, which.first):
                self._figures.hold((place not in handed.blocks) * self.block_bytes)
                handed.blocks[place] = block_W
            self._make_room(source, now)
            self._changed.notify_all()

    def _make_room(self, newest: Source, now: float) -> None:
        for source, handed in list(self._handed.items()):
            is_old = now - handed.came_at > HELD_S and source != newest
            if is_old or self._figures.held_bytes > HELD_BYTES_MAX:
                self._forget(source)
