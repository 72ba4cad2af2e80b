"""The connection that an outgoing link uses, and the one that may take its place (`path_move`).

Opened and closed only where `advance` is called, in the link's thread: so that it never polls a
closed one.
"""

from dataclasses import dataclass, field

import zmq

from molink.transport.curve import CurvePeer
from molink.transport.link.inbound import set_link_options
from molink.transport.link.path_move import PathMove, PathMoves

__all__ = ["Connections"]

Socket = zmq.Socket[bytes]


@dataclass(slots=True)
class Connections:
    """Of one outgoing link."""

    socket: Socket
    """In use."""
    address: str = ""
    """Where it leads."""
    descriptors: tuple[int, ...] = ()
    """Readable when something may have arrived; others after `advance`."""
    moves: PathMoves = field(default_factory=lambda: PathMoves(_no_socket))

    @classmethod
    def open(
        cls, context: "zmq.Context[Socket]", address: str, peer: CurvePeer | None
    ) -> "Connections":
        """Connect to `tcp://host:port`; with a `peer`, encrypted and to the owner of its key
        only."""

        def open_socket() -> Socket:
            socket = context.socket(zmq.DEALER)
            set_link_options(socket)
            if peer is not None:
                peer.protect(socket)
            return socket

        socket = open_socket()
        socket.connect(address)
        connections = cls(socket, address, moves=PathMoves(open_socket))
        connections._note_descriptors()
        return connections

    def advance(self, in_flight_bytes: int, now: float, *, silent: bool) -> list[PathMove]:
        """Take the next step of a move; those that have ended are to be told of it. `socket` is
        another one when one of them has drained the old one."""
        ended = self.moves.advance(in_flight_bytes, now, silent=silent)
        for move in ended:
            left = move.socket
            if move.phase == "drained":
                left, self.socket, self.address = self.socket, move.socket, move.address
            left.close()
        self._note_descriptors()
        return ended

    def close(self) -> None:
        """Close all; the link's thread must have ended."""
        for socket in self._sockets:
            socket.close()

    @property
    def _sockets(self) -> list[Socket]:
        move = self.moves.current
        return [self.socket] if move is None else [self.socket, move.socket]

    def _note_descriptors(self) -> None:
        self.descriptors = tuple(int(one.getsockopt(zmq.FD)) for one in self._sockets)


def _no_socket() -> Socket:
    raise NotImplementedError("this link was made from a socket and leads nowhere else")
