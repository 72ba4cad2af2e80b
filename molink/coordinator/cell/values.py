"""Values of a cell's driver: PCs as they are seen, room that stages want, and what they get."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from molink.control.messages.cell import CardFacts, CellFacts, LenderFacts
from molink.coordinator.nodes.node_book import NodeBook
from molink.stage_protocol.lan_lease import LanLease
from molink_scheduler.cell.leases import Lease
from molink_scheduler.kv.blocks import BLOCK_TOKENS

LAN_BYTES_PER_S = 125e6
"""Rate of a link in a LAN that nobody has measured: Gigabit Ethernet."""


DEBTOR_INCARNATION = 1
"""A stage's leases are given back when its ring ends, so it is never taken for another one."""

LENDS = "/lends"
"""Ending of a lender's name in the ledger, where its PC's stages have others."""

ATTEND_BYTES_PER_S = 3e9
"""KV that one core attends to: the slowest kernel, AVX2 at long contexts (docs/benchmarks)."""


@dataclass(frozen=True, slots=True)
class PcSeen:
    """PC of a cell that is here, by its last heartbeat; or its card that lends (`cards`)."""

    facts: LenderFacts
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Where it reaches other PCs directly, by their ids."""
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """Rates to them, as far as they were measured."""

    @property
    def of_pc(self) -> CellFacts:
        """What a PC tells; a card is asked for less."""
        assert isinstance(self.facts, CellFacts), "a card borrows nothing"
        return self.facts

    @property
    def attend_bytes_per_s(self) -> float:
        """KV that it attends to."""
        if isinstance(self.facts, CardFacts):
            return self.facts.bytes_per_s
        return self.of_pc.cores * ATTEND_BYTES_PER_S


def pcs_seen(book: NodeBook) -> dict[str, PcSeen]:
    """PCs that are here and tell of cells, by their ids."""
    found = dict[str, PcSeen]()
    for node in book:
        facts = node.health.cell if node.health is not None else None
        if facts is None or node.pc != node.node_id or not node.is_here:
            continue
        direct = {to: path for to, path in node.paths.items() if path.path == "direct"}
        hosts = {to: path.address.rpartition(":")[0] for to, path in direct.items()}
        rates = {to: path.rate_mbps * 1e6 / 8 for to, path in direct.items() if path.rate_mbps}
        found[node.node_id] = PcSeen(facts, {to: host for to, host in hosts.items() if host}, rates)
    return found


@dataclass(frozen=True, slots=True)
class RoomWanted:
    """Room for KV that a stage lacks."""

    node_id: str
    pc: str
    """PC that the node is of."""
    tokens: int
    token_bytes: int
    """Bytes of a token's KV in its layers."""
    layers: int
    row_bytes: int
    """Bytes of a decode row's queries and answers in one layer, both ways."""
    slower_s: float = math.inf
    """Seconds by which its steps may take longer."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of its stage."""
        return self.token_bytes * BLOCK_TOKENS

    @property
    def blocks(self) -> int:
        """Blocks that hold so many tokens."""
        return math.ceil(self.tokens / BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Grant:
    """Lease that a stage has."""

    wanted: RoomWanted
    lender: str
    """PC that lends."""
    lease: Lease
    lan: LanLease

    @property
    def tokens(self) -> int:
        """Tokens that it holds."""
        return self.lease.blocks * BLOCK_TOKENS
