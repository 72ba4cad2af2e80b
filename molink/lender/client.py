"""A lender as a stage's engine asks it (`engine_protocol.lender`): frames over a socket, and when
to give it up.

An answer is waited for in the middle of a layer, so the wait has an end: ten times what such an
answer usually takes, within bounds. What comes later than that finds nobody: the link is closed, as
it is for an answer of another incarnation, to another ask, or with numbers that are none. So a
lender is whole or lost, and never wrong.
"""

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np

from molink.engine_protocol.lender import LentKv, LentSpan
from molink.engine_protocol.values import BlockBytes
from molink.errors import FrameError, LenderLostError
from molink.lender.protocol import Frame, Kind, LenderLink, Receiver, send
from molink.printable import plain_line
from molink.wire.elements import Elements, Floats, TensorHeader, as_elements

USUAL_TIMES = 10
"""How many times as long as usual an answer may take."""

TIMEOUT_S = (0.02, 1.0)
"""Bounds of the wait for an answer: a PC that swaps for a moment is no lender lost, and a stage
that waits longer holds up its ring."""

BEGIN_S = 120.0
"""Wait for a lender to start: it imports torch, which took 22 s on a PC with ten other jobs."""

BULK_S = 10.0
"""Wait for blocks that go out or come back: 32 MB over a socket take 10 ms where the PC is idle."""

REASON_BYTES = 400
"""Bytes of what a lender says of why it does not begin, at most."""

USUAL_SHARE = 0.1
"""Weight of the last answer in what is usual."""


class LenderProcess(Protocol):
    """Process at the other end of a link."""

    def kill(self) -> None:
        """End it, also where it stands still."""


@dataclass(slots=True)
class LenderClient:
    """Link to one lender process; see `engine_protocol.lender.Lender`."""

    link: LenderLink
    timeout_s: tuple[float, float] = TIMEOUT_S
    process: LenderProcess | None = None
    """Process at the other end, which ends with the link; None: it is somebody else's."""
    where: str = "in host memory"
    """Place of the blocks, for people."""
    places: int = field(init=False, default=0)
    """Blocks that it holds at most."""
    _receiver: Receiver = field(init=False)
    _incarnation: int = field(init=False, default=0)
    _kv: LentKv = field(init=False)
    _values_of: dict[int, int] = field(init=False, default_factory=dict)
    """Size of a value, by layer."""
    _asked: Frame = field(init=False, default=Frame(Kind.ASK))
    _asked_at: float = field(init=False, default=0.0)
    _asked_nan: bool = field(init=False, default=False)
    """Whether the rows that were asked for are no numbers themselves, and so their answer."""
    _shape: tuple[int, int] = field(init=False, default=(0, 0))
    """Rows and heads of the answer that is owed."""
    _plan: tuple[LentSpan, ...] = field(init=False, default=())
    _keys: int = field(init=False, default=0)
    """Blocks that the plan reads."""
    _usual_s: float = field(init=False, default=0.0)
    """Seconds that an answer takes for each block that it reads; 0: none has come."""

    def __post_init__(self) -> None:
        self._receiver = Receiver(self.link)

    @property
    def is_lost(self) -> bool:
        """Whether it has been given up, or found gone just now: a link of which nothing is owed is
        read from only when it has ended."""
        if self.link.fileno() >= 0:
            self._look()
        return self.link.fileno() < 0

    def hold(self, kv: LentKv, places: int) -> None:
        """Be ready for so many blocks; what was held before is gone."""
        self._kv, self._values_of = kv, {one.layer: one.value_size for one in kv.layers}
        hello = json.dumps(asdict(kv) | {"places": places}).encode()
        self._send(Frame(Kind.HELLO), [hello])
        frame, content = self._next(BEGIN_S)
        if frame.kind == Kind.REFUSED:
            raise self._lost(plain_line(bytes(content[:REASON_BYTES]).decode(errors="replace")))
        if frame.kind != Kind.HELLO or not frame.incarnation:
            raise self._lost(f"it begins with {frame.kind.name}")
        if content != hello:
            raise self._lost(f"it is not ready for {places:,} blocks of these layers")
        self._incarnation, self.places = frame.incarnation, places

    def put(self, places: Sequence[int], packed_BW: BlockBytes) -> None:
        """Have the lender hold packed blocks, one in each of these places."""
        numbers = np.asarray(places, np.int32)
        self._send(Frame(Kind.PUT, number=len(numbers)), [numbers.data, packed_BW.data])

    def drop(self, places: Sequence[int]) -> None:
        """Hold these no more."""
        self._send(Frame(Kind.DROP), [np.asarray(places, np.int32).data])

    def keep(self, places: int, moves: Sequence[tuple[int, int]]) -> None:
        """Hold no more than the first places, into which blocks beyond them move; with none it
        ends."""
        self.places = places
        if not places:
            self._lost("it is needed no more")
            return
        pairs = np.asarray(moves, np.int32).reshape(-1, 2)
        self._send(Frame(Kind.KEEP, number=places), [pairs.data])

    def plan(self, spans: tuple[LentSpan, ...]) -> None:
        """What is asked from now on is asked for these spans."""
        if spans is self._plan:
            return  # The layers of a step share one.
        heads = [(span.rows, span.start, len(span.places)) for span in spans]
        places = np.concatenate([np.asarray(span.places, np.int32) for span in spans])
        self._plan, self._keys = spans, len(places)
        self._send(
            Frame(Kind.PLAN, number=len(spans)), [np.array(heads, np.int32).data, places.data]
        )

    def ask(
        self,
        layer: int,
        q_RHA: Elements,
        scale: float,
        softcap: float | None,
        window: int | None,
    ) -> None:
        """Ask for the attention of the plan's rows to its keys."""
        number = self._asked.number + 1
        self._asked = Frame(Kind.ASK, layer, number, 0, scale, softcap or 0.0, window or 0)
        self._shape, self._asked_nan = q_RHA.shape[:2], _has_nan(q_RHA)
        self._asked_at = time.perf_counter()
        self._send(self._asked, [np.ascontiguousarray(q_RHA).data])

    def answer(self) -> tuple[Elements, Floats]:
        """Attention to what was asked for last, and its log-sum-exp."""
        _, content = self._reply(Kind.ANSWER, self._wait_s)
        elapsed_s = time.perf_counter() - self._asked_at
        self._note(elapsed_s / max(1, self._keys))
        (rows, heads), size = self._shape, self._values_of[self._asked.layer]
        header = TensorHeader(self._kv.dtype, rows * heads, size)
        out_bytes = header.raw_bytes
        if len(content) != out_bytes + rows * heads * 4:
            raise self._lost(f"an answer of {rows} rows has {len(content)} bytes")
        out_RHV = as_elements(header, content[:out_bytes]).reshape(rows, heads, size)
        sums_RH = np.frombuffer(content[out_bytes:], np.float32).reshape(rows, heads)
        if (_has_nan(sums_RH) or _has_nan(out_RHV)) and not self._asked_nan:
            raise self._lost("its numbers are none")
        return out_RHV, sums_RH

    def take(self, layer: int, places: Sequence[int]) -> BlockBytes:
        """Keys and values of one layer in these places."""
        self._asked = Frame(Kind.TAKE, layer, self._asked.number + 1)
        self._send(self._asked, [np.asarray(places, np.int32).data])
        _, content = self._reply(Kind.ROWS, BULK_S)
        return np.frombuffer(content, np.uint8).reshape(len(places), -1)

    # -- the link -------------------------------------------------------------------------------

    @property
    def _wait_s(self) -> float:
        least, most = self.timeout_s
        usual_s = USUAL_TIMES * self._usual_s * max(1, self._keys)
        return min(most, max(least, usual_s)) if self._usual_s else most

    def _note(self, seconds: float) -> None:
        first = not self._usual_s
        self._usual_s += (1.0 if first else USUAL_SHARE) * (seconds - self._usual_s)

    def _send(self, frame: Frame, parts: Sequence[memoryview | bytes]) -> None:
        try:
            self.link.settimeout(BULK_S)
            send(self.link, frame, parts)
        except OSError as error:
            raise self._lost(f"it takes nothing ({error})") from error

    def _reply(self, kind: Kind, wait_s: float) -> tuple[Frame, memoryview]:
        frame, content = self._next(wait_s)
        if (frame.kind, frame.number) != (kind, self._asked.number):
            raise self._lost(f"{frame.kind.name} {frame.number} answers {self._asked.number}")
        if frame.incarnation != self._incarnation:
            raise self._lost("it is not the one that was given the blocks")
        return frame, content

    def _next(self, wait_s: float) -> tuple[Frame, memoryview]:
        try:
            self.link.settimeout(wait_s)
            return self._receiver.receive()
        except TimeoutError as error:
            raise self._lost(f"it has not answered within {wait_s * 1e3:,.0f} ms") from error
        except (OSError, FrameError) as error:
            raise self._lost(str(error)) from error

    def _look(self) -> None:
        """Give it up if its end of the link is closed."""
        try:
            self.link.settimeout(0)
            if not self.link.recv(1, socket.MSG_PEEK):
                self._lost("the other end has closed the link")
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(str(error))

    def _lost(self, why: str) -> LenderLostError:
        self.link.close()
        if self.process is not None:
            self.process.kill()  # One that stands still would hold its memory for ever.
        return LenderLostError(f"a lender of KV {self.where} is lost: {why}")


def _has_nan(elements: Elements) -> bool:
    if elements.dtype == np.uint16:  # bfloat16.
        return bool(((elements & 0x7FFF) > 0x7F80).any())
    return bool(np.isnan(elements).any())
