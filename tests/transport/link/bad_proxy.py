"""A TCP proxy whose network fails as home routers do: without a word to either end."""

import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

PIECE_BYTES = 65536
LOOK_S = 0.01
STUCK_S = 5.0


@dataclass(eq=False)
class _Pair:
    """One connection, from both sides."""

    near: socket.socket
    far: socket.socket
    forgotten: bool = False
    """What it is sent vanishes."""

    def other(self, side: socket.socket) -> socket.socket:
        return self.far if side is self.near else self.near


@dataclass
class BadProxy:
    """Leads to a port of 127.0.0.1, from `with` on."""

    port: int
    pairs: list[_Pair] = field(default_factory=list)
    frozen: bool = False
    """Nothing passes; what was sent comes later."""
    refusing: bool = False
    """New connections are accepted and lead nowhere."""

    def __enter__(self) -> "BadProxy":
        self._door = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._door.close()
        for pair in self.pairs:
            self._end(pair)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._door.getsockname()[1]}"

    def forget(self) -> None:
        """The connections that there are carry nothing from now on; new ones do."""
        for pair in self.pairs:
            pair.forgotten = True

    def _run(self) -> None:
        while not self._stopped.is_set():
            if self.frozen:
                self._stopped.wait(LOOK_S)
                continue
            for key, _ in self._selector.select(LOOK_S):
                if key.fileobj is self._door:
                    self._accept()
                elif not self.frozen and key.fileobj.fileno() >= 0:
                    self._carry(key.data, key.fileobj)

    def _accept(self) -> None:
        near, _ = self._door.accept()
        pair = _Pair(near, socket.create_connection(("127.0.0.1", self.port)), self.refusing)
        self.pairs.append(pair)
        for side in (pair.near, pair.far):
            side.settimeout(STUCK_S)
            self._selector.register(side, selectors.EVENT_READ, pair)

    def _carry(self, pair: _Pair, side: socket.socket) -> None:
        try:
            piece = side.recv(PIECE_BYTES)
            if piece and not pair.forgotten:
                pair.other(side).sendall(piece)
        except OSError:
            piece = b""
        if not piece:
            self._selector.unregister(side)
            if not pair.forgotten:
                self._end(pair)

    def _end(self, pair: _Pair) -> None:
        for side in (pair.near, pair.far):
            with suppress(KeyError, ValueError):
                self._selector.unregister(side)
            side.close()
