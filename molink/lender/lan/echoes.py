"""How soon a PC of the LAN answers, by echoes over the very link that a lender has. Whether that is
near enough the coordinator judges (`coordinator.cell.echo_links`)."""

import os
import time

from molink.errors import FrameError, LenderLostError
from molink.lender.lan.handshake import connected
from molink.lender.lan.sealed_link import SealedLink
from molink.lender.protocol import Frame, Kind, Receiver, send

ECHO_BYTES = 8 * 1024
"""Bytes of an echo each way: a row of 32 heads of 128 in 16 bits, and about its attention."""

ECHO_S = 1.0
"""Wait for an echo; who takes longer lends to nobody."""


def measure_echoes(host: str, port: int, lease: int, key: str, count: int = 20) -> list[float]:
    """Seconds of so many echoes, one after the other, to the lender of a lease that is allowed and
    not in use. The first one, which finds nothing warm, is not among them. Raises LenderLostError
    where it is not to be reached, or answers otherwise."""
    link = connected(host, port, lease, key)
    try:
        receiver = Receiver(link)
        return [_echo(link, receiver, number) for number in range(count + 1)][1:]
    except (OSError, FrameError) as error:
        raise LenderLostError(f"an echo of {host}:{port} is lost: {error}") from error
    finally:
        link.close()


def _echo(link: SealedLink, receiver: Receiver, number: int) -> float:
    content = os.urandom(ECHO_BYTES)
    started = time.perf_counter()
    link.settimeout(ECHO_S)
    send(link, Frame(Kind.ECHO, number=number), [content])
    frame, came = receiver.receive()
    elapsed_s = time.perf_counter() - started
    if (frame.kind, frame.number) != (Kind.ECHO, number) or came != content:
        raise FrameError("it sends back something else")
    return elapsed_s
