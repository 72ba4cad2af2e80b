"""Candidates for lending: three devices that a debtor may ask, the best first.

Ordered by cost, then most room, then name (DistKV-LLM's gManager). Cost is what a decode row of the
debtor waits longer: its link's time and the lender's attention to what is wanted.
"""

from collections.abc import Mapping

from molink_scheduler.cell.actions import Reason
from molink_scheduler.cell.events import DeviceFacts
from molink_scheduler.cell.quotas import bearable_bytes, link_s

CANDIDATES_MAX = 3
"""Lenders of one question, as in the paper: a device that all three refuse asks again."""

ROUND_TRIP_MAX_S = 1.5e-3
"""Above it a layer's call alone costs a stage of ten layers 15 ms a token; Wi-Fi is above it."""

Lenders = Mapping[str, tuple[DeviceFacts, int]]
"""Facts of devices that may lend, and bytes of room that each has left."""


def candidates(
    debtor: DeviceFacts, lenders: Lenders, blocks: int, slower_s: float
) -> list[tuple[str, int]] | Reason:
    """Names of at most three lenders, each with blocks to ask it for; or why there is none."""
    near = {
        name: bearable_bytes(debtor, link, lenders[name][0].attend_bytes_per_s, slower_s)
        for name, link in debtor.links.items()
        if name in lenders and link.round_trip_s <= ROUND_TRIP_MAX_S
    }
    found = list[tuple[float, int, str, int]]()
    for name, bearable in near.items():
        facts, room = lenders[name]
        count = int(min(blocks, min(room, bearable) // debtor.block_bytes))
        if count > 0:
            attention_s = blocks * debtor.block_bytes / facts.attend_bytes_per_s
            cost_s = link_s(debtor, debtor.links[name]) + attention_s
            found.append((cost_s, -room, name, count))
    if found:
        return [(name, count) for _, _, name, count in sorted(found)[:CANDIDATES_MAX]]
    if not near:
        return Reason.NO_LENDER
    is_slow = max(near.values()) < debtor.block_bytes
    return Reason.TOO_SLOW if is_slow else Reason.NO_ROOM
