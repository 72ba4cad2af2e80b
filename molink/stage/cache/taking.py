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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.errors import FrameError
from molink.stage.cache.handed_blocks import HELD_BYTES_MAX, HandedBlocks
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
from molink.stage.cache.pair_sockets import Door, door_of
from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.kv.changes import Fetched, KeepBlocks, TakeBlocks

log = logging.getLogger(__name__)

LINKS_MAX = 8
"""Links at a time, of which one is the other end's: a further one is closed at once."""


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
    handed: HandedBlocks
    fetched: Callable[[Fetched], None]
    """Called in the thread when blocks are sure."""
    _is_same: bool = field(init=False, default=True)
    """Whether the stage still has the layers that the pair agreed on."""
    _open: set[socket.socket] = field(init=False, default_factory=set)
    """Sockets of all who have connected."""
    _opening: threading.Lock = field(init=False, default_factory=threading.Lock)
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
        door = door_of(pairing, address)
        pair = cls(pairing, door, computes, HandedBlocks(block_bytes), fetched)
        for name, run in (("taking", pair._fill), ("listening", pair._accept)):
            threading.Thread(target=run, name=name, daemon=True).start()
        return pair

    # -- in the stage's thread ------------------------------------------------------------------

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Fill nothing any more of the epoch before; with other layers, nothing at all."""
        self._finish()
        self.handed.halt(is_halting=False)
        self._is_same = block_bytes == self.handed.block_bytes

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
        with self._opening:
            for link in self._open:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
        self._finish()
        self._jobs.put(None)

    @property
    def health(self) -> PairHealth:
        """What it has taken so far."""
        linked, figures = self.handed.links > 0, self.handed.figures
        return figures.health(self.pairing, linked=linked, port=self.door.port)

    def _finish(self) -> None:
        """Fill what has been asked for with what has come, and return when that is done."""
        done = threading.Event()
        self.handed.halt(is_halting=True)
        self._jobs.put(done)
        done.wait()

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
        found = self.handed.take(change.source, change.first_block, len(arriving.numbers))
        is_wanted = arriving.only(len(found))
        self.fetched(Fetched(change.fetch_id, len(found)))
        arriving.fill(found if is_wanted else [])

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
        with self._opening:
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
            with self._opening:
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
        self.handed.spoke(links=1)
        try:
            while True:
                self._take_record(link)
        except OSError:
            return
        except FrameError as error:
            log.warning("KV that is handed over is taken no more: %s.", error)
        finally:
            self.handed.spoke(links=-1)

    def _let_in(self, link: PairSocket) -> None:
        link.settimeout(ANSWER_S)
        magic, theirs = read_struct(link, HELLO)
        if magic != MAGIC:
            raise FrameError("what came is from no stage")
        if read_text(theirs) != read_text(text_of(self.computes)):
            self.handed.spoke()
            why = f"one stage has {read_text(theirs)}, and the other {self.computes}"
            link.sendall(ANSWER.pack(False, text_of(why)))
            raise FrameError(why)
        link.sendall(ANSWER.pack(True, b""))
        link.settimeout(None)

    def _take_record(self, link: PairSocket) -> None:
        which = Blocks(*read_struct(link, RECORD))
        record_bytes = which.blocks * self.handed.block_bytes
        if not 0 < which.blocks <= RECORD_BLOCKS_MAX or record_bytes > HELD_BYTES_MAX:
            raise FrameError(f"a record of {which.blocks:,} blocks")
        blocks_BW = np.empty((which.blocks, self.handed.block_bytes), np.uint8)
        read_exactly(link, blocks_BW.reshape(-1).data)
        self.handed.keep(which, blocks_BW)
