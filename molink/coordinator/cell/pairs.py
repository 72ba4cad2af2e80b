"""Pairs of PCs that the operator has confirmed, which may lend to each other.

They are kept by the registry. A cell is what such pairs hold together. Of two PCs of a cell that
were not confirmed as a pair neither lends to the other: text can be inferred from lent KV, so each
word counts for those whom it names.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from molink.control.messages.payloads import PathMeasured
from molink.control.registry.registry import Registry
from molink.coordinator.nodes.node import Node

SETTING = "cell_pairs"
"""Name of the registry's setting: a JSON list of pairs of ids."""

LAN_RTT_MS = 5.0
"""Round trip below which PCs that reach each other directly are shown as a pair that could be one:
Wi-Fi is among them, and its echoes keep it out."""

Pair = tuple[str, str]
"""Ids of two PCs, in the order of the alphabet."""

MARK = "/"
"""Between a PC's id and its card, in the name of that as a lender; no id has it."""


def pc_of(lender: str) -> str:
    """The PC of a lender, which is that PC's main memory, or its card."""
    return lender.partition(MARK)[0]


def is_card(lender: str) -> bool:
    """Whether a lender is a card."""
    return MARK in lender


def pair_of(one: str, other: str) -> Pair:
    """The pair of two PCs."""
    return (one, other) if one < other else (other, one)


@dataclass(slots=True)
class ConfirmedPairs:
    """The pairs of one cluster, as its registry keeps them."""

    registry: Registry
    pairs: frozenset[Pair] = frozenset()

    def __post_init__(self) -> None:
        self.pairs = _read(self.registry.setting(SETTING))

    def keep(self, pairs: Iterable[Pair]) -> None:
        """Replace them. Raises StorageError when the registry cannot be written."""
        changed = frozenset(pairs)
        self.registry.set_setting(SETTING, json.dumps(sorted(changed)))
        self.pairs = changed


def cells_of(pairs: Iterable[Pair]) -> list[frozenset[str]]:
    """Cells that pairs hold together."""
    cells = list[frozenset[str]]()
    for pair in pairs:
        joined = [cell for cell in cells if cell & set(pair)]
        cells = [cell for cell in cells if cell not in joined]
        cells.append(frozenset(pair).union(*joined))
    return cells


def direct_path(one: Node, other: Node) -> PathMeasured | None:
    """The direct path from one node to another, as it has measured it; None: it has not, or there
    is none."""
    path = one.paths.get(other.node_id)
    return path if path is not None and path.path == "direct" else None


def _read(kept: str | None) -> frozenset[Pair]:
    """What was kept; nothing where that cannot be read: then nothing is lent."""
    try:
        read = json.loads(kept or "[]")
        return frozenset(
            pair_of(one, other) for one, other in read if f"{one}{other}" == one + other
        )
    except (ValueError, TypeError):
        return frozenset()
