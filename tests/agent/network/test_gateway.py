"""Routers that map ports, as doubles: a UPnP library that raises what miniupnpc raises, and a
NAT-PMP router on loopback. No real router has answered these tests."""

import socket
import struct
import threading
from dataclasses import dataclass, field

import pytest

from molink_agent.network.gateway import NatPmpGateway, UpnpGateway, default_router


@dataclass
class Upnp:
    """What `miniupnpc.UPnP()` is."""

    lanaddr: str = "192.168.1.20"
    found: int = 1
    trouble: str | None = None
    ports: dict = field(default_factory=dict)

    def discover(self):
        return self.found

    def selectigd(self):
        if self.trouble:
            raise Exception(self.trouble)  # As miniupnpc does, bare.

    def externalipaddress(self):
        return "8.8.4.4"

    def addportmapping(self, outside, protocol, host, inside, text, remote, lease_s):
        self.ports[outside] = (protocol, host, inside, lease_s)
        return outside != 666

    def deleteportmapping(self, outside, protocol):
        del self.ports[outside]


def test_a_upnp_router_maps_and_forgets():
    upnp = Upnp()
    gateway = UpnpGateway(upnp)
    assert gateway.discover() == "8.8.4.4"
    assert gateway.map(7000, 3600) == 7000
    assert upnp.ports == {7000: ("TCP", "192.168.1.20", 7000, 3600)}
    gateway.unmap(7000)
    assert upnp.ports == {}


def test_no_router_at_all_is_an_os_error_and_not_success():
    with pytest.raises(OSError, match="no UPnP router answers"):
        UpnpGateway(Upnp(found=0)).discover()
    with pytest.raises(OSError) as raised:
        UpnpGateway(Upnp(trouble="Success")).discover()
    assert "Success" not in str(raised.value)
    with pytest.raises(OSError, match="No UPnP device discovered"):
        UpnpGateway(Upnp(trouble="No UPnP device discovered")).discover()


def test_what_the_router_refuses_is_an_os_error():
    gateway = UpnpGateway(Upnp())
    gateway.discover()
    with pytest.raises(OSError, match="did not map port 666"):
        gateway.map(666, 60)
    with pytest.raises(OSError):
        gateway.unmap(1)


class NatPmpRouter(threading.Thread):
    """RFC 6886 on loopback; gives every port plus 1000."""

    def __init__(self, result=0, drop=0):
        super().__init__(daemon=True)
        self.line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.line.bind(("127.0.0.1", 0))
        self.port = self.line.getsockname()[1]
        self.result, self.drop, self.leases = result, drop, {}
        self.start()

    def run(self):
        while True:
            request, sender = self.line.recvfrom(100)
            if request == b"stop":
                return
            if self.drop:
                self.drop -= 1
                continue
            self.line.sendto(self.answer(request), sender)

    def answer(self, request):
        head = struct.pack("!BBHI", 0, 128 + request[1], self.result, 1)
        if request[1] == 0:
            return head + bytes([8, 8, 4, 4])
        inside, _, lease_s = struct.unpack("!HHI", request[4:12])
        self.leases[inside] = lease_s
        return head + struct.pack("!HHI", inside, inside + 1000 if lease_s else 0, lease_s)

    def stop(self):
        self.line.sendto(b"stop", ("127.0.0.1", self.port))
        self.join()
        self.line.close()


@pytest.fixture
def router():
    routers = []

    def make(**settings):
        routers.append(NatPmpRouter(**settings))
        return routers[-1]

    yield make
    for one in routers:
        one.stop()


def test_a_nat_pmp_router_maps_and_forgets(router):
    there = router()
    gateway = NatPmpGateway("127.0.0.1", there.port)
    assert gateway.discover() == "8.8.4.4"
    assert gateway.map(7000, 3600) == 8000
    assert there.leases == {7000: 3600}
    gateway.unmap(7000)
    assert there.leases == {7000: 0}


def test_a_lost_packet_is_sent_again(router):
    assert NatPmpGateway("127.0.0.1", router(drop=1).port).discover() == "8.8.4.4"


def test_a_nat_pmp_router_that_refuses_is_an_os_error(router):
    with pytest.raises(OSError, match="code 2"):
        NatPmpGateway("127.0.0.1", router(result=2).port).discover()


def test_no_nat_pmp_router_is_an_os_error(monkeypatch):
    monkeypatch.setattr("molink_agent.network.gateway.NAT_PMP_TRIES_S", (0.01, 0.01))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="NAT-PMP"):
            NatPmpGateway("127.0.0.1", silent.getsockname()[1]).discover()


def test_the_default_router_is_the_default_routes(tmp_path):
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway\tFlags\n"
        "eth0\t0001A8C0\t00000000\t0001\n"
        "eth0\t00000000\t0101A8C0\t0003\n"
    )
    assert default_router(routes) == "192.168.1.1"
    routes.write_text("Iface\tDestination\tGateway\tFlags\n")
    with pytest.raises(OSError, match="no default route"):
        default_router(routes)
