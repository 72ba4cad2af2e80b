"""One lender of a LAN: its link's other end is a stage's, which may hold so many bytes here.

It takes what a lender of the own PC takes, and two things more: a stage of another PC is told when
it asks for more than it was allowed, and echoes are sent back, by which the link is measured.
"""

import json
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le, MaxLen

from molink.checkpoint.kv_format import KvDtype
from molink.engine.layers.held_blocks import CPU, HeldBlocks
from molink.engine_protocol.lender import LentKv, LentLayer
from molink.errors import FrameError
from molink.lender.lan.sealed_link import SealedLink
from molink.lender.lender_process import LenderLoop
from molink.lender.protocol import Frame, Kind, Receiver, send
from molink.wire.schema import Rules, Schema
from molink_scheduler.units import gb_text

WORKING_BYTES = 768 * 2**20
"""Memory of a lender's own beside its blocks: a frame of 256 MiB, sealed and opened, and stacks."""

FIRST_FRAME_S = 3.0
"""Wait for a stage's first frame, which is the first that proves who sends."""


@dataclass(frozen=True, slots=True)
class LanHello:
    """What a stage of another PC asks for."""

    layers: Annotated[tuple[LentLayer, ...], MaxLen(1024)]
    dtype: Literal["float32", "bfloat16", "float16"]
    kv_dtype: KvDtype
    places: Annotated[int, Ge(1), Le(2**31 - 1)]

    def __post_init__(self) -> None:
        if not self.layers or any(min(one[1:]) < 1 for one in self.layers):
            raise ValueError("a stage has layers, and these have heads")

    @property
    def bytes_wanted(self) -> int:
        """Memory that its blocks take."""
        kv = LentKv(self.layers, self.dtype, self.kv_dtype)
        of_block = HeldBlocks.of(kv, 1).pool.block_rows()
        return self.places * sum(rows.shape[1] * rows.element_size() for rows in of_block)


HELLO = Schema(LanHello, Rules(least=0, most=2**16))


@dataclass(slots=True)
class LanLenderLoop:
    """Loop of one lender's process."""

    link: SealedLink
    incarnation: int
    bytes_max: int
    """Memory that its blocks may take."""
    held: Callable[[int], None]
    """Is told how many bytes are held, once they are."""
    device: torch.device = CPU
    """Where they lie."""
    _lender: LenderLoop = field(init=False)
    _block_bytes: int = field(init=False, default=0)

    def run(self) -> None:
        """Serve until the stage closes the link. Raises FrameError and OSError."""
        self._lender = LenderLoop(self.link, self.incarnation, self.device)
        receiver = Receiver(self.link)
        self.link.settimeout(FIRST_FRAME_S)
        with torch.inference_mode():
            while True:
                self._take(*receiver.receive())
                self.link.settimeout(None)

    def _take(self, frame: Frame, content: memoryview) -> None:
        match frame.kind:
            case Kind.ECHO:
                send(self.link, frame, [content])
            case Kind.HELLO:
                wanted = self._checked(content)
                if self.device.type == "cuda":
                    stay_within_on(self.device, self.bytes_max)
                self._lender.take(frame, content)
                self.held(wanted)
            case Kind.KEEP:
                self._keep(frame, content)
            case _:
                self._lender.take(frame, content)

    def _keep(self, frame: Frame, content: memoryview) -> None:
        """Hold fewer blocks, and no more from now on."""
        self._lender.take(frame, content)
        self.bytes_max = frame.number * self._block_bytes
        self.held(self.bytes_max)

    def _checked(self, content: memoryview) -> int:
        """Bytes that a stage may have that asks for them."""
        try:
            hello = HELLO.read(json.loads(bytes(content)))
            wanted, lent = hello.bytes_wanted, self.bytes_max
            self._block_bytes = wanted // hello.places
            if wanted > lent:
                raise FrameError(
                    f"{hello.places:,} blocks take {gb_text(wanted)}, and {gb_text(lent)} are lent"
                )
        except (ValueError, FrameError, MemoryError, RecursionError) as error:
            send(self.link, Frame(Kind.REFUSED), [str(error).encode()])
            raise FrameError(f"a stage was refused: {error}") from None
        return wanted


def stay_within(bytes_max: int) -> None:
    """Have this process take no more memory from now on than its blocks may, and what it works
    with; beyond, an allocation fails and the process ends."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    present = int(status["VmData"].split()[0]) * 1024
    limit = present + bytes_max + WORKING_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def stay_within_on(card: torch.device, bytes_max: int) -> None:
    """The same of a card's memory. Who sends echoes alone does not begin with the card, which takes
    a second."""
    total_bytes = torch.cuda.mem_get_info(card)[1]
    share = min(1.0, (bytes_max + WORKING_BYTES) / total_bytes)
    torch.cuda.set_per_process_memory_fraction(share, card)
