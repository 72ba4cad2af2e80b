"""Where others may send a PC, and where not."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.transport.paths.reach import Reach

HOME = [("127.0.0.1", "255.0.0.0"), ("192.168.1.7", "255.255.255.0")]
AT_HOME = Reach.of(["203.0.113.9"], HOME)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:80",
        "127.8.8.8:80",
        "0.0.0.0:80",
        "169.254.169.254:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
        "10.0.0.1:80",
        "172.16.0.1:22",
        "192.168.2.1:80",
        "100.64.0.1:80",
        "[::1]:80",
        "[fe80::1]:80",
        "[fd00::1]:80",
        "[::ffff:127.0.0.1]:80",
        "[::ffff:10.0.0.1]:80",
        "localhost:80",
        "router.lan:80",
        "2130706433:80",
        "127.1:80",
        "nonsense",
    ],
)
def test_no_lie_leads_to_this_pc_or_to_what_is_not_its_network(address):
    assert not AT_HOME.permits(address)


@pytest.mark.parametrize("address", ["192.168.1.20:7000", "8.8.8.8:7000", "[2606:4700::1]:7000"])
def test_neighbours_at_home_and_elsewhere_are_tried(address):
    assert AT_HOME.permits(address)


def test_loopback_is_a_neighbour_s_where_the_coordinator_was_reached_there():
    reach = Reach.of(["127.0.0.1"], HOME)
    assert reach.permitted(["127.0.0.1:1", "10.0.0.1:1", "8.8.8.8:1"]) == (
        "127.0.0.1:1",
        "8.8.8.8:1",
    )


def test_the_network_in_which_the_coordinator_was_reached_counts():
    """As in a container's or a campus's network of many parts."""
    reach = Reach.of(["10.96.0.1"], [("10.244.1.5", "255.255.255.0")])
    assert reach.permits("10.244.7.9:1") and not reach.permits("192.168.1.1:1")


def test_an_overlay_network_counts_as_a_whole():
    reach = Reach.of([], [("100.101.1.2", "255.255.255.255")])
    assert reach.permits("100.70.3.4:1") and not AT_HOME.permits("100.70.3.4:1")


def test_the_coordinator_may_have_a_name_and_a_relay_too(monkeypatch):
    addresses = {
        "club.example": "203.0.113.9",
        "relay.example": "8.8.8.8",
        "evil.example": "10.0.0.1",
    }

    def getaddrinfo(host, port, type):
        return [(0, 0, 0, "", (addresses[host], 0))]

    monkeypatch.setattr("molink.transport.paths.reach.socket.getaddrinfo", getaddrinfo)
    reach = Reach.of(["club.example"], HOME)
    assert reach.permits("club.example:8002") and not reach.permits("relay.example:8002")
    assert reach.permits_service("relay.example:8002")
    assert not reach.permits_service("evil.example:8002")


@given(st.ip_addresses(), st.integers(1, 65535))
def test_whatever_is_tried_is_public_or_at_home(address, port):
    host = f"[{address}]" if address.version == 6 else str(address)
    if AT_HOME.permits(f"{host}:{port}"):
        at_home = address.version == 4 and address in ipaddress.ip_network("192.168.1.0/24")
        assert address.is_global or at_home or getattr(address, "ipv4_mapped", None)
        assert not (address.is_loopback or address.is_link_local or address.is_multicast)
