"""The key that may speak on each of a process's links, when they are encrypted.

A link has one sender, so each port at which a process listens is for one key: the place of a port
is the place of its key on the list. That a key may speak on one port says nothing of the others.

Every encrypted link is CURVE: the sender knows the receiver's key beforehand, the receiver learns
the sender's in the handshake and asks the guard. ZeroMQ puts that question on a socket of its own
(ZAP), one for each context, which a thread of the guard answers.

A key that is not on the list is not refused but kept waiting, because the list may be a moment
behind a ring that forms; with the key's turn the connection opens at once. After a while it is told
to come again (300) rather than to stay away (400): a ZeroMQ client that was sent away never returns
by itself, and one that was told to come again does so only after its handshake has run out of time.
A handshake is not enough. A key that is struck off keeps the connections that it has; therefore the
receiver asks of every message whose it is. Closing and binding anew was rejected: it would also
throw out the neighbours that may stay.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from molink.wire.curve_keys import CurveKeys, check_keys

RAW_KEY_BYTES = 32
ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""Address where ZeroMQ asks; the same in every context."""

DOMAIN = b"molink-%d"
"""Domain of the port of each place. Without a domain ZeroMQ asks no question."""

CURVE_REQUEST_FRAMES = 9
"""Connection, empty, version, request id, domain, address, identity, mechanism, key."""

HEARTBEAT_MS = 1000
HEARTBEAT_TIMEOUT_MS = 3000
"""A frozen or unplugged neighbour is noticed in three to four seconds, else not in ten."""

HANDSHAKE_MS = 5000
"""A relay or a far link needs one or two seconds; a peer that says nothing holds a connection."""

WAIT_S = 4.0
"""How long a key that is not allowed is kept waiting: until just before its handshake ends."""

WAITING_MAX = 64
"""Keys kept waiting at a time; each holds a connection. Allowed keys never wait behind them."""

RECONNECT_MAX_MS = 1000
"""A sender that came too early tries again at least so often: as long as a ring may wait for it."""

CLOSE_S = 5.0
"""The thread only answers questions; one that takes longer to end hangs."""

log = logging.getLogger(__name__)

Context = zmq.Context["zmq.Socket[bytes]"]
Socket = zmq.Socket[bytes]


class CurveGuard:
    """The keys of one context's links, one for each port where it listens; they may be changed at
    any time, from any thread."""

    def __init__(self, context: Context, keys: CurveKeys) -> None:
        self._keys = keys
        self._allowed = keys.allowed
        self._zap: Socket = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.bind(ZAP_ADDRESS)
        self._bell, self._rung = _pair(context)
        self._bell_lock = threading.Lock()
        self._closing = False
        self._waiting: deque[_Question] = deque()
        self._thread = threading.Thread(target=self._run, name="curve guard", daemon=True)
        self._thread.start()

    @property
    def public_key(self) -> str:
        """Our own, in Z85."""
        return self._keys.public

    def key_of(self, place: int) -> str | None:
        """Key from which the port of this place takes messages now; None: it takes none."""
        allowed = self._allowed
        return allowed[place] if place < len(allowed) else None

    def allow(self, keys: Iterable[str]) -> None:
        """Accept on the port of each place this one's key from now on and no other, on connections
        that stand too. Raises ValueError for what is no key."""
        listed = tuple(keys)
        check_keys(listed)
        self._allowed = listed
        self._ring()

    def protect_listener(self, socket: Socket, place: int) -> None:
        """Make a socket, before it binds, accept the key of its place only."""
        _set_common(socket)
        socket.curve_server = True
        socket.curve_secretkey = self._keys.secret.encode()
        socket.zap_domain = DOMAIN % place

    def protect_sender(self, socket: Socket, receiver_key: str) -> None:
        """Make a socket, before it connects, speak to the owner of `receiver_key` only."""
        _set_common(socket)
        socket.reconnect_ivl_max = RECONNECT_MAX_MS
        socket.curve_serverkey = receiver_key.encode()
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()

    def close(self) -> None:
        """End the thread and its sockets; links of this context open no more."""
        self._closing = True
        self._ring()
        self._thread.join(CLOSE_S)
        self._bell.close()

    def _ring(self) -> None:
        """Let the thread see that the list has changed."""
        with self._bell_lock:
            self._bell.send(b"")

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._rung, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll(self._patience_ms()))
            if self._rung in ready:
                self._rung.recv()
            if self._zap in ready:
                self._take(self._zap.recv_multipart())
            self._answer_waiting(time.monotonic())
        self._zap.close()
        self._rung.close()

    def _patience_ms(self) -> int | None:
        if not self._waiting:
            return None
        return math.ceil(max(0.0, self._waiting[0].until - time.monotonic()) * 1e3)

    def _take(self, frames: list[bytes]) -> None:
        """Answer a question, or let it wait where a later list may answer otherwise."""
        is_curve = len(frames) == CURVE_REQUEST_FRAMES and frames[7:8] == [b"CURVE"]
        if not is_curve or len(frames[8]) != RAW_KEY_BYTES:
            self._answer(frames[:4], None)
            return
        key = z85.encode(frames[8]).decode()
        question = _Question(frames[:4], frames[4], key, time.monotonic() + WAIT_S)
        if self._may_connect(question):
            self._answer(question.envelope, key)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append(question)
        else:
            self._answer(question.envelope, None)

    def _answer_waiting(self, now: float) -> None:
        """Answer the questions whose keys are allowed now, or that have waited long enough."""
        for question in tuple(self._waiting):
            if self._may_connect(question):
                self._answer(question.envelope, question.key)
            elif now >= question.until:
                log.info("the key %s asked to connect and is not allowed here", question.key)
                self._answer(question.envelope, None)
            else:
                continue
            self._waiting.remove(question)

    def _may_connect(self, question: "_Question") -> bool:
        return (question.domain, question.key) in {
            (DOMAIN % place, key) for place, key in enumerate(self._allowed)
        }

    def _answer(self, envelope: list[bytes], key: str | None) -> None:
        """Yes with the key as user id, or come again."""
        if key is not None:
            self._zap.send_multipart([*envelope, b"200", b"OK", key.encode(), b""])
        else:
            self._zap.send_multipart([*envelope, b"300", b"not allowed yet", b"", b""])


@dataclass(frozen=True, slots=True)
class _Question:
    """Question whether a key may connect."""

    envelope: list[bytes]
    """Connection, empty, version, request id: an answer begins like its question."""
    domain: bytes
    """Domain of the port."""
    key: str
    until: float
    """Time until which it waits."""


@dataclass(frozen=True, slots=True)
class CurvePeer:
    """The far end that a sender insists on."""

    guard: CurveGuard
    key: str
    """Public key of the far end in Z85."""

    def protect(self, socket: Socket) -> None:
        """Make a socket, before it connects, speak to this far end only."""
        self.guard.protect_sender(socket, self.key)


def peer_of(guard: CurveGuard | None, key: str | None) -> CurvePeer | None:
    """The far end of a link that leaves here; None: neither is given, the link is plain.

    Raises ValueError when only one of them is given, so that no link is plain by an oversight, or
    when the key is none.
    """
    if guard is None and key is None:
        return None
    if guard is None or key is None:
        raise ValueError("its own links and its neighbour's key must both be given or both be not")
    check_keys((key,))
    return CurvePeer(guard, key)


def _set_common(socket: Socket) -> None:
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.heartbeat_ttl = HEARTBEAT_TIMEOUT_MS
    socket.handshake_ivl = HANDSHAKE_MS


def _pair(context: Context) -> tuple[Socket, Socket]:
    """Two ends within this process: what is sent into the first wakes the thread that polls the
    second."""
    ends: tuple[Socket, Socket] = (context.socket(zmq.PAIR), context.socket(zmq.PAIR))
    address = f"inproc://curve-guard-{id(ends)}"
    ends[0].bind(address)
    ends[1].connect(address)
    return ends
