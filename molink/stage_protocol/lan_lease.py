"""Leave to hold KV in another PC of the same LAN, as a stage is told it."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le, MaxLen, Predicate

LEASE_MAX = 2**63 - 1
"""Largest number of a lease, and of an incarnation."""


@dataclass(frozen=True, slots=True)
class LanLease:
    """Room that a PC of the LAN lends to one stage."""

    host: Annotated[str, MaxLen(255), Predicate(str.isprintable)]
    port: Annotated[int, Ge(1), Le(65_535)]
    lease: Annotated[int, Ge(0), Le(LEASE_MAX)]
    key: Annotated[str, MaxLen(64)] = field(repr=False)
    """Key of the lease, 32 bytes in hex; nobody else knows it, so it is never printed."""
    incarnation: Annotated[int, Ge(0), Le(LEASE_MAX)]
    """Number of the process that lends, drawn when that starts."""
    places_bytes: Annotated[int, Ge(0)]
    """Memory that may be held there."""

    def __post_init__(self) -> None:
        if len(bytes.fromhex(self.key)) != 32:
            raise ValueError("a lease's key has 32 bytes")
