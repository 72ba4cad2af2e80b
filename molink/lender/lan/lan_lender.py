"""Lender of a stage in another PC of its LAN, by the lease that the stage was given."""

from molink.lender.client import LenderClient
from molink.lender.lan.handshake import connected
from molink.stage_protocol.lan_lease import LanLease as LanLease


def lan_lender(lease: LanLease) -> LenderClient:
    """The lender of a lease, which ends when the client's link does. Raises LenderLostError where
    it is not to be reached, has started anew since, or lets nobody in. Answers have the bounds of a
    lender in the own PC: ten times what is usual, within 20 ms and 1 s."""
    link = connected(lease.host, lease.port, lease.lease, lease.key, lease.incarnation)
    return LenderClient(link, where=f"at {lease.host}:{lease.port}")
