"""What the kernel counted on each TCP connection of this machine: a witness apart from our code.

Asked over netlink's socket diagnosis, as `ss -ti` does (Linux, no rights needed); one question for
all established IPv4 connections takes a fraction of a millisecond, so it can be put a hundred times
a second. Starting `ss` that often would load the machine that is measured.
"""

import socket
import struct
from dataclasses import dataclass
from types import TracebackType

__all__ = ["Connection", "Counted", "TcpCounters"]

Connection = tuple[int, int]
"""(local port, remote port); both on loopback."""

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_DUMP = 0x301
ESTABLISHED = 1 << 1
INFO_WANTED = 1 << 1
INFO_ATTRIBUTE = 2

MESSAGE_HEADER = struct.Struct("=IHHII")
QUESTION = struct.Struct("=BBBBI")
SOCKET_ID_BYTES = 48
ANSWER_BYTES = 72
"""struct inet_diag_msg: state and timers, the socket's id, queues, user, inode."""

PORTS = struct.Struct("!HH")
PORTS_AT = 4
ATTRIBUTE_HEADER = struct.Struct("=HH")
BYTES_ACKED_AT = 120
"""In struct tcp_info; bytes received follow."""

COUNTS = struct.Struct("=QQ")
RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes of one connection since it was made."""

    sent_bytes: int
    """Taken by the other end's kernel."""
    received_bytes: int


class TcpCounters:
    """Socket on which the kernel is asked for its counts; a context manager."""

    def __enter__(self) -> "TcpCounters":
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        self._socket.settimeout(1.0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def now(self) -> dict[Connection, Counted]:
        """Every established connection."""
        question = QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, INFO_WANTED, 0, ESTABLISHED)
        body = question + bytes(SOCKET_ID_BYTES)
        size = MESSAGE_HEADER.size + len(body)
        self._socket.send(MESSAGE_HEADER.pack(size, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
        found: dict[Connection, Counted] = {}
        while _take(self._socket.recv(RECEIVE_BYTES), found):
            pass
        return found


def _take(data: bytes, found: dict[Connection, Counted]) -> bool:
    """Read messages into `found`; whether more will come."""
    at = 0
    while at + MESSAGE_HEADER.size <= len(data):
        size, kind, *_ = MESSAGE_HEADER.unpack_from(data, at)
        if kind != SOCK_DIAG_BY_FAMILY:
            return False  # Done, or an error; either way nothing follows.
        message = data[at + MESSAGE_HEADER.size : at + size]
        counted = _counted(message[ANSWER_BYTES:])
        if counted is not None:
            local, remote = PORTS.unpack_from(message, PORTS_AT)
            found[local, remote] = counted
        at += (size + 3) & ~3
    return True


def _counted(attributes: bytes) -> Counted | None:
    at = 0
    while at + ATTRIBUTE_HEADER.size <= len(attributes):
        size, kind = ATTRIBUTE_HEADER.unpack_from(attributes, at)
        if kind == INFO_ATTRIBUTE and size >= ATTRIBUTE_HEADER.size + BYTES_ACKED_AT + COUNTS.size:
            return Counted(*COUNTS.unpack_from(attributes, at + 4 + BYTES_ACKED_AT))
        at += max((size + 3) & ~3, ATTRIBUTE_HEADER.size)
    return None
