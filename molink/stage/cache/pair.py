"""What two paired stages say to each other, and the pair of a stage that has none.

They are of two rings, have the same layers, and stand in one PC or in two of one cell. The one that
sends says first what it computes: layers that do not agree, or formats, are refused in a sentence.
Then it sends blocks as they are computed, each with the request and its place there. Over which
socket is `pair_sockets`' matter.
"""

import hashlib
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from molink import __version__
from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import Prepared
from molink.errors import FrameError
from molink.printable import plain_line
from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.messages import LoadStage
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.kv.changes import KeepBlocks, TakeBlocks

MAGIC = b"MoLH"

TEXT_BYTES = 400
"""Bytes of what a stage computes, and of why that is refused."""

HELLO = struct.Struct(f"<4s{TEXT_BYTES}s")
"""Magic, and what the sender computes."""

ANSWER = struct.Struct(f"<?{TEXT_BYTES}s")
"""Whether it may send, or why not."""

RECORD = struct.Struct("<QQII")
"""Epoch, request, index of the first block in its prompt, and how many follow."""

RECORD_BLOCKS_MAX = 2**16
"""Blocks of one record: a million tokens."""

ANSWER_S = 5.0
"""Wait for what the other end says first: a process that may be within a long step."""


GIVE_WAY_NICENESS = 10
"""Niceness of threads that copy for another ring: those that compute for this one have 5."""


class PairSocket(Protocol):
    """Stream between two paired stages; for one thread."""

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Send all of these bytes. Raises OSError where the other end is gone."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Take bytes that have come; 0 where the link has ended. Raises OSError or FrameError."""

    def settimeout(self, value: float | None, /) -> None:
        """Wait so many seconds at most."""

    def close(self) -> None:
        """End it."""


class Pair(Protocol):
    """A stage's end of its pair; for the stage's own thread."""

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Be of the ring's epoch, with blocks of so many bytes. Returns when nothing of the one
        before is filled any more."""

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Blocks are computed, and cached from now on."""

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Fill blocks with what was handed over; False: nothing ever is."""

    def close(self) -> None:
        """End it, from any thread but its own: what has come until now is filled, no more."""

    @property
    def health(self) -> PairHealth | None:
        """What it has handed over or taken so far; None: it is no pair."""


@dataclass(frozen=True, slots=True)
class NoPair:
    """Pair of a stage that has none."""

    health: None = None

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Begin an epoch in which nothing is handed over."""

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Hand no block over: there is nobody to take it."""

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Take no block: nobody hands one over."""
        return False

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(slots=True)
class StagePair:
    """End of a pair that may become that of another one, or of none, between two blocks; for any
    thread. What is on its way when that happens is lost, and computed."""

    end_of: Callable[[Pairing | None], Pair] = lambda pairing: NoPair()
    """Makes an end; without it none is made, whatever it is told."""
    _now: Pair = field(default_factory=NoPair)
    _begun: tuple[int, int] | None = None
    """Epoch of the ring and bytes of a block, once they are known."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def become(self, pairing: Pairing | None) -> None:
        """Be this end from now on; None: of no pair."""
        with self._lock:
            self._now.close()
            self._now = self.end_of(pairing)
            if self._begun is not None:
                self._now.begin(*self._begun)

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Be of the ring's epoch, with blocks of so many bytes."""
        with self._lock:
            self._begun = epoch, block_bytes
            self._now.begin(epoch, block_bytes)

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Blocks are computed, and cached from now on."""
        with self._lock:
            self._now.kept(change, device)

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Fill blocks with what was handed over; False: nothing ever is."""
        with self._lock:
            return self._now.take(change, arriving)

    @property
    def health(self) -> PairHealth | None:
        """What the present end has handed over or taken; None: it is of no pair."""
        return self._now.health


class Blocks(NamedTuple):
    """Header of a record: the blocks that it holds, and of which request they are."""

    epoch: int
    request_id: int
    first: int
    blocks: int


def computed_by(load: LoadStage, layers: Prepared) -> str:
    """What a stage computes, for a person and for its pair, which computes the same. Both have
    their weights from one coordinator, perhaps in folders of different names: a model is told by
    its config."""
    held = layers.layers
    return plain_line(
        f"layers {held.start} to {held.stop} of {_model(load.model)} in {layers.dtype} with KV in "
        f"{layers.loaded.kv_dtype}, {layers.block_bytes} bytes a block, by MoLink {__version__}"
    )


def give_way() -> None:
    """Have this thread give way to those that compute."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GIVE_WAY_NICENESS)


def _model(model: str) -> str:
    config = Path(model) / "config.json"
    if not config.is_file():
        return model  # A hub's id.
    digest = hashlib.blake2b(config.read_bytes(), digest_size=6)
    return f"the model with config {digest.hexdigest()}"


def read_exactly(link: PairSocket, view: memoryview) -> None:
    """Fill memory with what comes next. Raises OSError where the link ends before."""
    while view:
        count = link.recv_into(view)
        if not count:
            raise ConnectionResetError("the other end has ended")
        view = view[count:]


def read_struct(link: PairSocket, form: struct.Struct) -> tuple[Any, ...]:
    """What comes next, in this form. Raises OSError where the link ends before."""
    packed = bytearray(form.size)
    read_exactly(link, memoryview(packed))
    return form.unpack(packed)


def introduce(link: PairSocket, computes: str) -> None:
    """Say what is sent from here. Raises FrameError with the other end's sentence where it will
    not have it, OSError where it is gone."""
    link.settimeout(ANSWER_S)
    link.sendall(HELLO.pack(MAGIC, text_of(computes)))
    is_wanted, why = read_struct(link, ANSWER)
    if not is_wanted:
        raise FrameError(read_text(why))


def text_of(text: str) -> bytes:
    """A text as it is sent; its end, where two stages differ, stays."""
    return text.encode()[-TEXT_BYTES:]


def read_text(packed: bytes) -> str:
    """A text that was sent."""
    return plain_line(packed.rstrip(b"\0").decode(errors="replace"))
