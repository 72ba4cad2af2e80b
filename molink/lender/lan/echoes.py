"""How soon a PC of the LAN answers, by echoes over the very link that a lender has; and whether it
is near enough to lend."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from molink.errors import FrameError, LenderLostError
from molink.lender.lan.handshake import connected
from molink.lender.lan.sealed_link import SealedLink
from molink.lender.protocol import Frame, Kind, Receiver, send

ECHO_BYTES = 8 * 1024
"""Bytes of an echo each way: a row of 32 heads of 128 in 16 bits, and about its attention."""

ECHO_S = 1.0
"""Wait for an echo; who takes longer lends to nobody."""

NEAR_SHARE = 0.95
"""Share of the echoes that have to come in time."""

IN_S, OUT_S = 0.001, 0.0015
"""A PC is in a cell when its echoes take less than the one, and out when they take as long as the
other. A layer is waited for as long, and a wire takes 0.1 to 0.3 ms; Wi-Fi falls out."""


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


@dataclass(slots=True)
class CellLinkJudge:
    """Whether one PC's link is near enough for a cell, by its last echoes and what was so before:
    between both bounds nothing changes, so one at a bound does not come and go."""

    is_in: bool = False

    def judge(self, seconds: Sequence[float]) -> bool:
        """Take echoes into account; whether the PC is in. None at all have it out."""
        bound_s = OUT_S if self.is_in else IN_S
        near = sum(one < bound_s for one in seconds)
        self.is_in = bool(seconds) and near >= NEAR_SHARE * len(seconds)
        return self.is_in
