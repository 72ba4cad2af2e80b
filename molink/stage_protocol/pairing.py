"""How a stage is paired with the stage of another ring that has the same layers."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le, MaxLen, Predicate

from molink.stage_protocol.lan_lease import LEASE_MAX


@dataclass(frozen=True, slots=True)
class PairLink:
    """Sealed link of one pair, whose stages stand in two PCs of a LAN, or are of two agents."""

    number: Annotated[int, Ge(1), Le(LEASE_MAX)]
    """Number of the pair, which no other one ever has."""
    key: Annotated[str, MaxLen(64)] = field(repr=False)
    """Key of the pair, 32 bytes in hex; its two stages alone know it, so it is never printed."""
    host: Annotated[str, MaxLen(255), Predicate(str.isprintable)] = ""
    """Where the stage listens that takes; that one is not told."""
    port: Annotated[int, Ge(0), Le(65_535)] = 0

    def __post_init__(self) -> None:
        if len(bytes.fromhex(self.key)) != 32:
            raise ValueError("a pair's key has 32 bytes")


@dataclass(frozen=True, slots=True)
class Pairing:
    """One end of the hand-over of KV between two stages."""

    path: Annotated[str, MaxLen(4096)] = ""
    """Socket in a folder that nobody else on the PC may enter. The stage that takes listens."""
    sends: bool = False
    """Whether it hands over what it computes; else it takes what the other one does."""
    link: PairLink | None = None
    """Sealed link in place of that socket; None: the socket is on this PC."""

    def __post_init__(self) -> None:
        if bool(self.path) == (self.link is not None):
            raise ValueError("a pair has a socket's path, or a sealed link")
        if self.link is not None and self.sends and not (self.link.host and self.link.port):
            raise ValueError("who sends is told where the other end listens")
