"""The links of one process of a ring: where it listens, what leaves it, and the thread of both.

A stage and the coordinator differ in what they do with a message, not in how it comes and goes.
What they share is here: one ZeroMQ context, one guard of keys, one link thread, and the check that
a message is well-formed and of this ring's epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import zmq

from molink.errors import FrameError
from molink.transport.curve import CurveGuard, peer_of
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.inbound import ArrivedMessage, InboundLink
from molink.transport.link.paced_link import OnSilence, PacedLink
from molink.transport.link.thread import LinkThread
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import LinkRole, Message, decode_message, encode_message
from molink_scheduler.batch import DECODE, BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.transmission import TransmissionQueue

OPEN_TIMEOUT_S = 8.0
"""A far end that has not answered by then is not there: it has listened since it loaded, and behind
a relay and a slow handshake it answers in three or four seconds."""


class Stale(Enum):
    """Message of an epoch that is over, when its ring lost a stage: nobody's fault."""

    STALE = "stale"


STALE: Final = Stale.STALE


@dataclass(slots=True)
class ProcessLinks:
    """Inbound ports, outgoing links and link thread of one process."""

    name: str
    """Name of the process, in its log."""
    inbound: list[InboundLink]
    epoch: int
    """Epoch of the ring; messages of those before are dropped, of others refused."""
    guard: CurveGuard | None
    """Guard with the keys that may speak here; None: the links are not encrypted."""
    thread: LinkThread
    _context: "zmq.Context[zmq.Socket[bytes]]"

    @classmethod
    def bind(
        cls,
        name: str,
        host: str,
        roles: Sequence[LinkRole],
        deliver: Callable[[ArrivedMessage], None],
        on_failure: Callable[[Exception], None],
        keys: CurveKeys | None = None,
        epoch: int = 0,
        on_quiet: Callable[[], None] = lambda: None,
        first_port: int = 0,
    ) -> "ProcessLinks":
        """Listen at a free port of `host` (from `first_port` on, if given) for each of these
        senders; with `keys`, encrypted, and only to the one whose key is in the same place.

        In the link thread `deliver` is called with each message that has arrived whole, and
        `on_failure` when that thread ends by an error, so that no link works any more, and
        `on_quiet` when a far end falls silent. `decode` takes what was delivered.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        guard = CurveGuard(context, keys) if keys is not None else None
        try:
            inbound = [
                InboundLink.bind(context, host, guard, role, place, first_port)
                for place, role in enumerate(roles)
            ]
        except BaseException:
            if guard is not None:
                guard.close()
            context.destroy(linger=0)
            raise
        thread = LinkThread(inbound, deliver, on_failure, on_quiet)
        thread.start()
        return cls(name, inbound, epoch, guard, thread, context)

    def connect(
        self,
        name: str,
        address: str,
        key: str | None,
        queue: TransmissionQueue,
        pacer: LinkPacer,
        on_silence: OnSilence,
    ) -> PacedLink:
        """A link to `tcp://host:port`, to be opened; `key` is the far end's public key in Z85 where
        links are encrypted. Raises ValueError when keys are given for one end only."""
        peer = peer_of(self.guard, key)
        return PacedLink.connect(self._context, name, address, queue, pacer, peer, on_silence)

    def open(
        self,
        link: PacedLink,
        *,
        measure: bool = True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Serve a link from now on and wait until its far end answers; False when it does not, or
        is not waited for any more."""
        return self.thread.open(link, OPEN_TIMEOUT_S, measure=measure, given_up=given_up)

    def send(
        self,
        link: PacedLink,
        message: Message,
        batch_class: BatchClass = DECODE,
    ) -> None:
        """Send a message; what may not leave at once leaves from the link thread."""
        if not link.send(encode_message(message, self.epoch), batch_class):
            self.thread.wake()

    def move(self, link: PacedLink, address: str, done: Callable[[MoveOutcome], None]) -> None:
        """Lead a link to another address of its far end; `done` is called in the link thread."""
        link.move_to(address, done)
        self.thread.wake()

    def decode(self, arrived: ArrivedMessage) -> Message | Stale | None:
        """The message that has arrived, off the count of those that wait; None, and counted, when
        it is malformed, of an epoch to come, or not its sender's to send."""
        link = arrived.link
        if link.taken(arrived):
            self.thread.wake()
        try:
            message, epoch = decode_message(arrived.frames, link.role)
            if epoch > self.epoch:
                raise FrameError(f"it is of epoch {epoch}, this ring is of {self.epoch}")
        except FrameError as error:
            link.refuse(error)
            return None
        return message if epoch == self.epoch else STALE

    @property
    def frames_refused(self) -> int:
        """Messages and pieces of all inbound links that were dropped, for whatever reason."""
        return sum(link.refused_count for link in self.inbound)

    def close(self) -> None:
        """End the link thread and close every link."""
        self.thread.stop()
        for inbound in self.inbound:
            inbound.socket.close()
        for outbound in self.thread.outbound:
            outbound.close()
        if self.guard is not None:
            self.guard.close()
        self._context.term()
