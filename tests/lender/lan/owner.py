"""Owner of a real server of a LAN's lenders, as an agent is one."""

import json
import queue
import secrets
import subprocess
import sys
import threading
from typing import Any

import psutil

from molink.lender.client import LenderClient
from molink.lender.lan.lan_lender import LanLease, lan_lender

LENT_BYTES, WITHIN_S = 2**26, 60.0


class Owner:
    """A server on 127.0.0.1, and what it has been told to allow."""

    def __init__(self, *options: str) -> None:
        arguments = ["--bind", "127.0.0.1", "--port", "0", "--threads", "1", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "molink.lender.lan.lan_server", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        first = self.next_line()
        self.port, self.incarnation = first["port"], first["incarnation"]
        self._leases = 0

    def next_line(self) -> dict[str, Any]:
        """What the server says next."""
        line: dict[str, Any] = json.loads(self._lines.get(timeout=WITHIN_S))
        return line

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self.process.stdout.close()

    def tell(self, **order: Any) -> None:
        """Give an order, which has been carried out when another link is answered."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def lease(self, lent_bytes: int = LENT_BYTES, **other: Any) -> LanLease:
        """A lease that is allowed; what is `other` the stage was told wrongly."""
        self._leases += 1
        key = secrets.token_hex(32)
        self.tell(allow=self._leases, key=key, bytes=lent_bytes)
        told = {"lease": self._leases, "key": key, "incarnation": self.incarnation} | other
        return LanLease("127.0.0.1", self.port, **told, places_bytes=lent_bytes)

    def until_ended(self, lease: LanLease) -> None:
        """Read what is said until the lender of a lease has ended."""
        while self.next_line() != {"lease": lease.lease, "state": "ended", "bytes": 0}:
            pass

    def lenders(self) -> list[psutil.Process]:
        """Processes that lend now."""
        return psutil.Process(self.process.pid).children()

    def close(self) -> None:
        """Close its input, at which it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WITHIN_S) == 0
        self._reader.join()


def patient(lease: LanLease) -> LenderClient:
    """Its lender, for tests in which it counts whether it answers and not how soon."""
    client = lan_lender(lease)
    client.timeout_s = (30.0, 30.0)
    return client
