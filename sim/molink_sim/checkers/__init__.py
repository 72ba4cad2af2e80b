"""Invariants that must hold of every run, one to a file."""

from molink_sim.checkers.bounded_queues import BoundedQueues
from molink_sim.checkers.bytes_conserved import BytesConserved
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.checkers.ends_once import EndsOnce
from molink_sim.checkers.everything_finishes import EverythingFinishes
from molink_sim.checkers.kv_blocks import KvBlocksKept
from molink_sim.checkers.nothing_refused import NothingRefused
from molink_sim.checkers.prefill_served import PrefillServed
from molink_sim.checkers.survivors_stay import SurvivorsStay
from molink_sim.checkers.tokens_in_order import TokensInOrder
from molink_sim.checkers.watch import Watchers

__all__ = ["CHECKERS", "Checker", "Place", "RingLife", "Watchers"]

CHECKERS: tuple[type[Checker], ...] = (
    EndsOnce,
    TokensInOrder,
    BytesConserved,
    KvBlocksKept,
    BoundedQueues,
    PrefillServed,
    NothingRefused,
    SurvivorsStay,
    EverythingFinishes,
)
"""All that a swarm checks."""
