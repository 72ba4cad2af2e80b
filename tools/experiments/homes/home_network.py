"""Homes on one machine: a network namespace for each, and names and addresses for all of them.

Each home has one network device, of the kind TUN: what its kernel sends there is read by
`delay_lines`, delayed, and written to the device of the home that it is addressed to. So the
kernels' TCP runs end to end, with its congestion control, and loses what a queue does not hold. The
coordinator's home is the machine's own namespace, so that API clients reach it as always. Names and
addresses follow from the number of the process that makes them: two networks do not collide.
"""

import fcntl
import ipaddress
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError

__all__ = ["Home", "HomeNetwork", "check_available", "open_tun", "run_ip"]

BENCHMARK_ADDRESSES = ipaddress.IPv4Network("198.18.0.0/15")
"""Set aside for measurements (RFC 2544): they exist neither at home nor in the internet."""

SUBNET_BITS = 26
"""62 homes."""

HOMES_MAX = 2 ** (32 - SUBNET_BITS) - 2

MTU_BYTES = 1500
WAITING_PACKETS_MAX = 4000
"""Between two rounds of `delay_lines`: more than TCP sends at once, so that all loss is its."""

TUN = Path("/dev/net/tun")
TUN_SET_NAME = 0x400454CA
"""ioctl TUNSETIFF."""
TUN_PACKETS = 0x0001 | 0x1000
"""IFF_TUN | IFF_NO_PI: bare IP packets."""


@dataclass(frozen=True, slots=True)
class Home:
    """One home: an end of every line."""

    address: str
    device: str
    namespace: str | None
    """None: the machine's own."""


@dataclass(frozen=True, slots=True)
class HomeNetwork:
    """Names and addresses of some homes."""

    homes: tuple[Home, ...]
    """The coordinator's first, then one for each stage."""
    subnet: str

    @classmethod
    def of(cls, number: int, stages: int) -> "HomeNetwork":
        """The network of process `number`. Raises UserError for more stages than addresses."""
        if stages >= HOMES_MAX:
            raise UserError(f"a network of homes has room for {HOMES_MAX - 1} stages at most")
        subnets = list(BENCHMARK_ADDRESSES.subnets(new_prefix=SUBNET_BITS))
        subnet = subnets[number % len(subnets)]
        addresses = [str(subnet[1 + place]) for place in range(stages + 1)]
        homes = tuple(
            Home(address, f"ml{number}x{place}", f"molink-{number}-{place}" if place else None)
            for place, address in enumerate(addresses)
        )
        return cls(homes, str(subnet))

    def set_up_commands(self, congestion: str) -> list[list[str]]:
        """Arguments of `ip`, once the devices exist; TCP between homes uses `congestion`."""
        commands = []
        for home in self.homes:
            within = ["-n", home.namespace] if home.namespace else []
            if home.namespace:
                commands += [
                    ["netns", "add", home.namespace],
                    ["link", "set", home.device, "netns", home.namespace],
                    [*within, "link", "set", "lo", "up"],
                ]
            place = [f"{home.address}/{SUBNET_BITS}"]  # Neighbours of a network are tried directly.
            size = ["mtu", str(MTU_BYTES), "txqueuelen", str(WAITING_PACKETS_MAX)]
            route = ["dev", home.device, "src", home.address, "congctl", congestion]
            commands += [
                [*within, "addr", "add", *place, "dev", home.device, "noprefixroute"],
                [*within, "link", "set", home.device, *size, "up"],
                [*within, "route", "add", self.subnet, *route],
            ]
        return commands

    def tear_down(self) -> None:
        """Remove what is there of it; the devices go with the process that opened them."""
        for home in self.homes:
            if home.namespace and (Path("/run/netns") / home.namespace).exists():
                subprocess.run(["ip", "netns", "del", home.namespace], check=False)


def check_available() -> None:
    """Raises UserError when this machine or this user cannot make namespaces and TUN devices."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise UserError("real TCP needs root, for network namespaces: run this as root")
    if shutil.which("ip") is None:
        raise UserError("real TCP needs the program `ip`: install iproute2")
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError as error:
        raise UserError(f"real TCP needs {TUN}, which cannot be opened: {error.strerror}") from None


def open_tun(name: str) -> int:
    """Make a device that lives until its descriptor, which is returned, is closed.

    Raises OSError when the kernel refuses.
    """
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUN_SET_NAME, struct.pack("16sH22x", name.encode(), TUN_PACKETS))
    return descriptor


def run_ip(commands: Sequence[Sequence[str]]) -> None:
    """Run `ip` with each. Raises CalledProcessError when one fails; `ip` has said why."""
    for arguments in commands:
        subprocess.run(["ip", *arguments], check=True)
