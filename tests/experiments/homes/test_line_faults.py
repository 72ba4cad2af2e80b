"""Faults of lines between homes, packet by packet."""

import socket
import struct
from random import Random

import pytest

from tools.experiments.homes.line_faults import LineFaults, checksum, reset_of

ONE, OTHER = "198.18.0.2", "198.18.0.3"


def a_packet(source: str = ONE, target: str = OTHER, payload: bytes = b"data", flags: int = 0x18):
    tcp = struct.pack("!HHIIBBHHH", 5000, 6000, 77, 99, 5 << 4, flags, 1000, 0, 0) + payload
    size = 20 + len(tcp)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, size, 0, 0, 64, 6, 0)
    return ip + socket.inet_aton(source) + socket.inet_aton(target) + tcp


def faults(*orders: str) -> LineFaults:
    made = LineFaults(Random(1))
    for order in orders:
        made.order(order)
    return made


def test_a_cut_holds_one_way_until_it_is_mended():
    line = faults("", f"cut {ONE} {OTHER}")
    back = a_packet(OTHER, ONE)
    assert line.passed(a_packet(), 0.0) is None
    assert line.passed(back, 0.0) == back
    line.order("mend")
    assert line.passed(a_packet(), 0.0) == a_packet()


def test_jitter_changes_from_burst_to_burst_within_its_most():
    line = faults(f"jitter {ONE} 200")
    late = [line.late_s(a_packet(), at / 100) for at in range(1000)]
    assert all(0 <= one <= 0.2 for one in late)
    assert 150 <= len(set(late)) <= 250
    assert line.late_s(a_packet(OTHER, ONE), 0.0) == 0.0


def test_a_reset_is_one_to_the_receivers_kernel():
    packet = a_packet()
    reset = faults("reset 1").passed(packet, 0.0)
    assert reset == reset_of(packet) and len(reset) == 40
    assert reset[20:32] == packet[20:32], "ports and numbers are those of the packet"
    assert reset[33] == 0x14
    assert checksum(reset[:20]) == 0
    pseudo = reset[12:20] + struct.pack("!BBH", 0, 6, 20)
    assert checksum(pseudo + reset[20:]) == 0


def test_a_share_of_the_connections_that_send_is_reset():
    line = faults("reset 0.01")
    for at in range(20_000):
        line.passed(a_packet(), at / 100)
    assert 10 <= line.reset_count <= 35, "1 % of 2,000 draws, ten a second"


@pytest.mark.parametrize(
    "packet", [a_packet(payload=b""), a_packet(flags=0x02), b"\x60" + bytes(60)]
)
def test_what_carries_nothing_or_opens_a_connection_is_not_reset(packet):
    assert faults("reset 1").passed(packet, 0.0) == packet


def test_another_order_is_refused():
    with pytest.raises(ValueError, match="no order"):
        faults("flip everything")
