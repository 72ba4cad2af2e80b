"""Households that addresses belong to: whoever counts strangers counts these."""

import ipaddress

IPV6_NETWORK_BITS = 64
"""A household has at least so many addresses; they count as one."""


def household_of(host: str | None) -> str:
    """Whom an address is counted for: itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_NETWORK_BITS), strict=False))
