"""What befalls packets between homes, by order: lines that are cut, that jitter, that are reset.

An order is a line of words, addresses first: `cut FROM TO` (nothing passes that way), `jitter FROM
MS` (what leaves there comes up to so much later, in order), `reset SHARE` (of all connections, ten
times a second), `mend` (all is well again). Pure: time is an argument, randomness has a seed.
"""

import struct
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from random import Random

__all__ = ["LineFaults"]

VERSION = 4
ADDRESSES = slice(12, 20)
SOURCE = slice(12, 16)
"""In an IPv4 header."""

PROTOCOL_AT, TCP = 9, 6
FLAGS_AT, RST, ACK, SYN = 13, 0x04, 0x10, 0x02
"""In a TCP header."""

TCP_HEADER_BYTES = 20

JITTER_PERIOD_S = 0.05
"""After which a line takes another time: a crowded Wi-Fi holds up bursts, not single packets."""

RESET_PERIOD_S = 0.1
"""How often a connection that sends may be reset."""

CONNECTIONS_MAX = 10_000
"""Followed; beyond that all begin anew."""


@dataclass(slots=True)
class LineFaults:
    """Faults that are in force."""

    random: Random
    reset_count: int = 0
    _cut: set[bytes] = field(default_factory=set)
    """Source and destination, as they stand in a packet."""
    _jitter_s: dict[bytes, float] = field(default_factory=dict)
    """The most of each source..."""
    _late: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    """...and until when it is how much."""
    _reset_share: float = 0.0
    _next_draw_s: dict[bytes, float] = field(default_factory=dict)
    """Of each connection, by its addresses and ports."""

    def order(self, words: str) -> None:
        """Take an order; an empty one changes nothing. Raises ValueError for another one."""
        match words.split():
            case []:
                return
            case ["cut", source, target]:
                self._cut.add(IPv4Address(source).packed + IPv4Address(target).packed)
            case ["jitter", source, most_ms]:
                self._jitter_s[IPv4Address(source).packed] = float(most_ms) / 1000
            case ["reset", share]:
                self._reset_share = float(share)
            case ["mend"]:
                self._cut.clear()
                self._jitter_s.clear()
                self._reset_share = 0.0
            case _:
                raise ValueError(f"no order for lines: {words}")

    def passed(self, packet: bytes, now_s: float) -> bytes | None:
        """What goes on in place of a packet; None: nothing."""
        if packet[ADDRESSES] in self._cut:
            return None
        if self._reset_share and self._is_reset(packet, now_s):
            self.reset_count += 1
            return reset_of(packet)
        return packet

    def late_s(self, packet: bytes, now_s: float) -> float:
        """How much longer than usual a packet that leaves now is under way."""
        source = packet[SOURCE]
        most_s = self._jitter_s.get(source, 0.0)
        if not most_s:
            return 0.0
        until_s, late_s = self._late.get(source, (0.0, 0.0))
        if now_s >= until_s:
            late_s = self.random.uniform(0.0, most_s)
            self._late[source] = (now_s + JITTER_PERIOD_S, late_s)
        return late_s

    def _is_reset(self, packet: bytes, now_s: float) -> bool:
        if packet[0] >> 4 != VERSION or packet[PROTOCOL_AT] != TCP:
            return False
        tcp = packet[(packet[0] & 15) * 4 :]
        if tcp[FLAGS_AT] & (RST | SYN) or len(tcp) <= (tcp[12] >> 4) * 4:
            return False  # What carries nothing need not have the number that is awaited.
        connection = packet[ADDRESSES] + tcp[:4]
        if now_s < self._next_draw_s.get(connection, 0.0):
            return False
        if len(self._next_draw_s) >= CONNECTIONS_MAX:
            self._next_draw_s.clear()
        self._next_draw_s[connection] = now_s + RESET_PERIOD_S
        return self.random.random() < self._reset_share


def reset_of(packet: bytes) -> bytes:
    """The reset that takes the place of a TCP packet; its sender learns of it when it sends on."""
    header_bytes = (packet[0] & 15) * 4
    tcp = bytearray(packet[header_bytes : header_bytes + TCP_HEADER_BYTES])
    tcp[12], tcp[FLAGS_AT] = (TCP_HEADER_BYTES // 4) << 4, RST | ACK
    struct.pack_into("!H", tcp, 16, 0)
    pseudo = packet[ADDRESSES] + struct.pack("!BBH", 0, TCP, len(tcp))
    struct.pack_into("!H", tcp, 16, checksum(pseudo + tcp))
    ip = bytearray(packet[:header_bytes])
    struct.pack_into("!H", ip, 2, header_bytes + len(tcp))
    struct.pack_into("!H", ip, 10, 0)
    struct.pack_into("!H", ip, 10, checksum(bytes(ip)))
    return bytes(ip + tcp)


def checksum(data: bytes) -> int:
    """The internet's checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
