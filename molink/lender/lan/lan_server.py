"""Entry point of what lends a PC's memory, or a card's, to stages of its LAN:
`python -m molink.lender.lan.lan_server --bind HOST --port 0 --threads N --device cuda:1`.

It forks a lender for each lease that a stage comes for, from a process that has imported torch and
computes nothing, so that it has one thread (see `fork_server`), and does not touch the card: a fork
may begin with it only where nobody has before. Linux alone.

Its owner, the agent, writes a JSON object a line on its standard input and reads the same from its
standard output:

| line | from | says |
|---|---|---|
| `{"port": P, "incarnation": I}` | server | first: where it listens, and its number |
| `{"allow": LEASE, "key": HEX, "bytes": N}` | owner | who has this key may hold so many bytes |
| `{"revoke": LEASE}` | owner | nobody may any more; who does loses it |
| `{"lease": LEASE, "state": "held", "bytes": N}` | server | a stage holds so many bytes |
| `{"lease": LEASE, "state": "ended", "bytes": 0}` | server | its lender has ended, or was revoked |

A lender ends with its link, and its lease may be come for again until it is revoked. A lease of 0
bytes is good for echoes. When standard input closes, all end.
"""

import argparse
import ctypes
import gc
import json
import os
import secrets
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from molink.errors import FrameError, UserError
from molink.json_object import JsonObject
from molink.lender.lan.handshake import KEY_BYTES, OPENING, Opening, let_in, refusal
from molink.quick_imports import quick_imports
from molink.wire.protocol import PROTOCOL_VERSION

with quick_imports():
    import torch

    from molink.lender.lan.lender_loop import LanLenderLoop, stay_within

WAITING_MAX = 16
"""Links that have said nothing yet; for a further one the oldest goes."""

PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl."""

LEASE_MAX = 2**63 - 1


class LeaseTerms(NamedTuple):
    """What a lease allows."""

    key: bytes
    bytes_max: int


@dataclass(slots=True)
class Fork:
    """Lender of one lease."""

    lease: int
    pid: int
    ended: int
    """Descriptor that is readable once the process has ended."""
    link: socket.socket


@dataclass(slots=True)
class LanServer:
    """Lenders of one PC, children of this process."""

    listener: socket.socket
    threads: int
    device: str = "cpu"
    """Where the blocks lie, as torch calls it."""
    orders: int = 0
    """Descriptor from which the owner's lines come."""
    reports: int = 1
    """Descriptor for lines to the owner."""
    incarnation: int = field(init=False, default_factory=lambda: secrets.randbits(63) or 1)
    _allowed: dict[int, LeaseTerms] = field(init=False, default_factory=dict)
    _forks: dict[int, Fork] = field(init=False, default_factory=dict)
    """Lenders, by their leases."""
    _waiting: dict[int, socket.socket] = field(init=False, default_factory=dict)
    """Links that have not said what they want, by descriptor, the oldest first."""
    _line: bytes = field(init=False, default=b"")
    """Beginning of the owner's next line."""

    def run(self) -> None:
        """Let stages in until the owner closes our input."""
        self._report({"port": self.listener.getsockname()[1], "incarnation": self.incarnation})
        while self._is_owned():
            pass
        for lease in [*self._forks]:
            self._end(lease)

    def _is_owned(self) -> bool:
        """Wait for something, and do what it asks for; False once the owner has gone."""
        ready = {one for one, _ in self._poll().poll()}
        for fork in [*self._forks.values()]:
            if ready & {fork.ended, fork.link.fileno()}:
                self._end(fork.lease)
        if self.orders in ready and not self._take_orders():
            return False
        for link in ready & self._waiting.keys():
            self._open(self._waiting.pop(link))
        if self.listener.fileno() in ready:
            self._accept()
        return True

    def _poll(self) -> "select.poll":
        poll = select.poll()
        for descriptor in (self.orders, self.listener.fileno(), *self._waiting):
            poll.register(descriptor, select.POLLIN)
        for fork in self._forks.values():
            poll.register(fork.ended, select.POLLIN)
            poll.register(fork.link, select.POLLRDHUP)
        return poll

    # -- the owner ------------------------------------------------------------------------------

    def _take_orders(self) -> bool:
        came = os.read(self.orders, 2**16)
        *lines, self._line = (self._line + came).split(b"\n")
        for line in lines:
            try:
                self._obey(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                _say(f"no order to a LAN's lender: {line[:80]!r}")
        return bool(came)

    def _obey(self, order: JsonObject) -> None:
        if "revoke" in order:
            self._allowed.pop(order["revoke"], None)
            self._end(order["revoke"])
            return
        lease, key, bytes_max = order["allow"], bytes.fromhex(order["key"]), order["bytes"]
        are_numbers = type(lease) is type(bytes_max) is int
        if not (are_numbers and 0 <= lease <= LEASE_MAX and bytes_max >= 0):
            raise ValueError("a lease has a number, and bytes")
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self._allowed[lease] = LeaseTerms(key, bytes_max)

    def _report(self, line: JsonObject) -> None:
        os.write(self.reports, json.dumps(line).encode() + b"\n")  # Whole: it is shorter than 512.

    def _report_of(self, lease: int, state: str, held_bytes: int) -> None:
        self._report({"lease": lease, "state": state, "bytes": held_bytes})

    # -- stages ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):
            link, _ = self.listener.accept()
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.pop(next(iter(self._waiting))).close()
            self._waiting[link.fileno()] = link

    def _open(self, link: socket.socket) -> None:
        """Let a stage in, or tell it why not. What opens a link is smaller than a packet, so it
        comes whole or is none."""
        link.setblocking(False)
        try:
            opening = Opening.read(link.recv(OPENING.size))
        except (OSError, FrameError):
            link.close()
            return
        if why := self._objection(opening):
            with suppress(OSError):
                link.send(refusal(why, self.incarnation))
            link.close()
            return
        link.setblocking(True)
        self._fork(link, opening, self._allowed[opening.lease])

    def _objection(self, opening: Opening) -> str:
        """Why a stage is not let in; empty: it is."""
        if opening.protocol != PROTOCOL_VERSION:
            return f"it speaks protocol {PROTOCOL_VERSION}, and was asked in {opening.protocol}"
        terms = self._allowed.get(opening.lease)
        if terms is None or not opening.is_by(terms.key):
            return f"lease {opening.lease} is not allowed, or its key is another"
        if opening.lease in self._forks:  # One that its stage has left was ended just now.
            return f"lease {opening.lease} is in use"
        return ""

    def _fork(self, link: socket.socket, opening: Opening, terms: LeaseTerms) -> None:
        owner = os.getpid()
        pid = os.fork()
        if pid:
            fork = Fork(opening.lease, pid, os.pidfd_open(pid), link)
            self._forks[opening.lease] = fork
            return
        code = 1
        try:
            self._leave_all_but(link)
            _end_with(owner)
            self._lend(link, opening, terms)
            code = 0
        except ConnectionError:
            code = 0
        except Exception as error:
            _say(f"a lender of lease {opening.lease} ends: {error}")
        finally:
            os._exit(code)

    def _leave_all_but(self, link: socket.socket) -> None:
        """Close what the process that forks has open, so that links end with their own lenders."""
        os.close(self.orders)
        for other in (self.listener, *self._waiting.values()):
            other.close()
        for fork in self._forks.values():
            fork.link.close()
            os.close(fork.ended)

    def _lend(self, link: socket.socket, opening: Opening, terms: LeaseTerms) -> None:
        torch.set_num_threads(self.threads)
        device = torch.device(self.device)
        if device.type == "cpu":
            stay_within(terms.bytes_max)
        sealed = let_in(link, opening, terms.key, self.incarnation)
        LanLenderLoop(
            sealed,
            secrets.randbits(63) or 1,
            terms.bytes_max,
            lambda held_bytes: self._report_of(opening.lease, "held", held_bytes),
            device,
        ).run()

    def _end(self, lease: int) -> None:
        """End the lender of a lease, also where it stands still; the owner is told in any case."""
        if (fork := self._forks.pop(lease, None)) is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fork.ended, signal.SIGKILL)
            os.waitpid(fork.pid, 0)
            os.close(fork.ended)
            with suppress(OSError):
                fork.link.shutdown(socket.SHUT_RDWR)
            fork.link.close()
        self._report_of(lease, "ended", 0)


def _end_with(owner: int) -> None:
    """Have this process end with the one that forked it, however that ends."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != owner:
        os._exit(1)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> None:
    """Serve stages of the LAN for the process at our standard streams."""
    parser = argparse.ArgumentParser(prog="molink.lender.lan.lan_server")
    parser.add_argument("--bind", required=True, help="Address of this PC in its LAN.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="Whose memory is lent: cpu or cuda:N.")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        raise UserError("memory is lent to a LAN by PCs with Linux alone")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # A collection in a lender would write to, and so copy, all that it shares.
    address, family = (arguments.bind, arguments.port), socket.AF_INET
    if ":" in arguments.bind:
        family = socket.AF_INET6
    with socket.create_server(address, family=family, backlog=WAITING_MAX) as listener:
        LanServer(listener, arguments.threads, arguments.device).run()


if __name__ == "__main__":
    main()
