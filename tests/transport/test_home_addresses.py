"""Where a PC says that it may be reached."""

import socket
from dataclasses import dataclass

from molink.control.messages.payloads import Profile
from molink.transport.home_addresses import ADDRESSES_MAX, candidates, home_addresses


@dataclass
class Bound:
    """As psutil has it."""

    address: str
    family: int = socket.AF_INET


PC = {
    "lo": [Bound("127.0.0.1")],
    "eth0": [Bound("192.168.1.20"), Bound("fe80::1", socket.AF_INET6)],
    "wlan0": [Bound("169.254.3.4"), Bound("192.168.1.21")],
    "docker0": [Bound("172.17.0.1")],
    "br-4f5": [Bound("172.18.0.1")],
    "veth12": [Bound("10.1.1.1")],
    "wg0": [Bound("10.9.0.3")],
}


def test_only_addresses_that_others_can_mean():
    assert home_addresses(PC) == ["192.168.1.20", "10.9.0.3", "192.168.1.21"]


def test_this_machine_can_be_asked():
    assert "127.0.0.1" not in home_addresses()


def test_home_comes_first_then_the_router_then_what_the_coordinator_sees():
    assert candidates(7000, ["192.168.1.20"], "203.0.113.5:7001", "203.0.113.9") == (
        "192.168.1.20:7000",
        "203.0.113.5:7001",
        "203.0.113.9:7000",
    )


def test_what_the_router_has_mapped_is_not_guessed_again():
    assert candidates(7000, [], "203.0.113.5:7001", "203.0.113.5") == ("203.0.113.5:7001",)
    assert candidates(7000, ["203.0.113.5"], None, "203.0.113.5") == ("203.0.113.5:7000",)


def test_a_port_that_listens_at_one_address_is_only_there():
    assert candidates(7000, ["192.168.1.20"], bound_to="127.0.0.1") == ("127.0.0.1:7000",)


def test_a_profile_takes_all_of_them():
    many = candidates(7000, [f"10.0.0.{n}" for n in range(40)])
    assert len(many) == ADDRESSES_MAX
    fields = dict(devices=(), cpu_threads=1, memory_bytes=1, disk_free_bytes=1)
    Profile(**fields, upload_mbps=1, download_mbps=1, addresses=many)
