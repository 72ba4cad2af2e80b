"""Home routers that let a PC ask for an open port: UPnP and NAT-PMP, both spoken with blocking
calls, for a thread of `mapping`.

Public addresses are strings; lease times in seconds. Everything here raises OSError when the router
does not do it; miniupnpc raises bare `Exception`, on a network without a router with the message
"Success", so it is translated.
"""

import ipaddress
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

DISCOVER_MS = 2000
"""How long a router has to answer the search; they do within half a second."""

DESCRIPTION = "MoLink"
"""Name that the owner sees in the router's list."""


class Gateway(Protocol):
    """Router that maps ports."""

    def discover(self) -> str:
        """Find the router; its public address."""

    def map(self, port: int, lease_s: int) -> int:
        """Let this port of the PC be reached; the public port."""

    def unmap(self, port: int) -> None:
        """Remove the mapping of a port."""


class UpnpGateway:
    """Router that speaks UPnP IGD, through miniupnpc."""

    def __init__(self, upnp: Any = None) -> None:
        """`upnp`: what stands for `miniupnpc.UPnP()`."""
        self._upnp = upnp

    def discover(self) -> str:
        """Search the network for a router that maps ports."""
        if self._upnp is None:
            import miniupnpc

            self._upnp = miniupnpc.UPnP()
        self._upnp.discoverdelay = DISCOVER_MS
        if not self._call("discover"):
            raise OSError("no UPnP router answers")
        self._call("selectigd")
        return str(self._call("externalipaddress"))

    def map(self, port: int, lease_s: int) -> int:
        """Map the same port outside as inside; the router refuses one that another PC has."""
        upnp = self._upnp
        if not self._call(
            "addportmapping", port, "TCP", upnp.lanaddr, port, DESCRIPTION, "", lease_s
        ):
            raise OSError(f"the router did not map port {port}")
        return port

    def unmap(self, port: int) -> None:
        """Remove the mapping of a port."""
        self._call("deleteportmapping", port, "TCP")

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._upnp, name)(*arguments)
        except OSError:
            raise
        except Exception as error:
            reason = "" if str(error) == "Success" else f": {error}"
            raise OSError(f"no UPnP router does {name}{reason}") from None


NAT_PMP_PORT = 5351
NAT_PMP_TRIES_S = (0.25, 0.5, 1.0)
"""RFC 6886 doubles from 250 ms up to nine times; a router in the same house needs one."""

PUBLIC_ADDRESS, MAP_TCP = 0, 2
ANSWER = 128
"""Number that is added to the operation in the answer."""


@dataclass(slots=True)
class NatPmpGateway:
    """Default router, asked by NAT-PMP (RFC 6886)."""

    router: str | None = None
    """Address of the router; None: the default route's."""
    port: int = NAT_PMP_PORT
    _public_ports: dict[int, int] = field(default_factory=dict)

    def discover(self) -> str:
        """Ask the router for its public address."""
        self.router = self.router or default_router()
        answer = self._ask(struct.pack("!BB", 0, PUBLIC_ADDRESS), PUBLIC_ADDRESS, 12)
        return str(ipaddress.IPv4Address(answer[8:12]))

    def map(self, port: int, lease_s: int) -> int:
        """Map a port; the router may give another port than the one it was asked for."""
        wanted = self._public_ports.get(port, port)
        request = struct.pack("!BBHHHI", 0, MAP_TCP, 0, port, wanted, lease_s)
        answer = self._ask(request, MAP_TCP, 16)
        inside, outside = struct.unpack("!HH", answer[8:12])
        if inside != port:
            raise OSError("the router answers for another port")
        self._public_ports[port] = outside
        return int(outside)

    def unmap(self, port: int) -> None:
        """Remove the mapping: a lease of no time."""
        self._public_ports.pop(port, None)
        self._ask(struct.pack("!BBHHHI", 0, MAP_TCP, 0, port, 0, 0), MAP_TCP, 16)

    def _ask(self, request: bytes, operation: int, size: int) -> bytes:
        """One request and its answer. Raises OSError when none comes, or a refusal."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.connect((self.router, self.port))
            for wait_s in NAT_PMP_TRIES_S:
                connection.send(request)
                connection.settimeout(wait_s)
                try:
                    answer = connection.recv(64)
                except TimeoutError:
                    continue
                if is_answer(answer, operation, size):
                    return answer
        raise OSError("the router does not speak NAT-PMP")


def is_answer(datagram: bytes, operation: int, size: int) -> bool:
    """Whether a datagram answers this operation. Raises OSError when it is a refusal."""
    if len(datagram) < size or datagram[1] != ANSWER + operation:
        return False
    (result,) = struct.unpack("!H", datagram[2:4])
    if result:
        raise OSError(f"the router refuses NAT-PMP with code {result}")
    return True


def default_router(routes: Path = Path("/proc/net/route")) -> str:
    """Address of the default route's next hop. Raises OSError when there is none."""
    for line in routes.read_text().splitlines()[1:]:
        columns = line.split()
        if len(columns) > 2 and columns[1] == "00000000" and columns[2] != "00000000":
            return socket.inet_ntoa(struct.pack("<I", int(columns[2], 16)))
    raise OSError("no default route")
