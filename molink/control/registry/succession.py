"""Two coordinators of one cluster while its model is changed: which one stands beside, and which
PCs it commands.

The one that came later is a copy of the first: the same key, members and certificate, so PCs need
not be asked whether they trust it. Each has a folder, a broker and a relay of its own, and knows of
the other only what stands here in its registry. It is read as commands write it: a PC that is
*moved* is let go by the one in whose registry that stands.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from molink.control.registry.registry import Registry
from molink.errors import UserError

SUCCESSOR, MOVED = "successor", "moved_pcs"
"""Names of the registry's settings."""

NO_SUCCESSOR = (
    "No other coordinator stands beside this one: start `molink up MODEL --replaces FOLDER` first, "
    "with the folder of this one."
)


@dataclass(frozen=True, slots=True)
class Successor:
    """The coordinator that stands beside, on the same machine."""

    folder: str
    """Its data folder, in which the sockets of both its ports lie."""
    port: int
    """Port of its API."""
    agents_port: int
    models: tuple[str, ...]
    """Names of the model that it serves."""


def successor_of(registry: Registry) -> Successor | None:
    """The coordinator beside this registry's; None: there is none."""
    try:
        told = json.loads(registry.setting(SUCCESSOR) or "null")
        return None if told is None else Successor(**told | {"models": tuple(told["models"])})
    except (ValueError, TypeError, KeyError):
        return None


def set_successor(registry: Registry, successor: Successor | None) -> None:
    """Note which coordinator stands beside this registry's."""
    registry.set_setting(SUCCESSOR, json.dumps(None if successor is None else asdict(successor)))


def moved_pcs(registry: Registry) -> frozenset[str]:
    """Ids of the PCs that this registry's coordinator has let go, or is to."""
    try:
        told = json.loads(registry.setting(MOVED) or "[]")
    except ValueError:
        return frozenset()
    return frozenset(map(str, told)) if isinstance(told, list) else frozenset()


def set_moved(registry: Registry, pcs: Iterable[str]) -> None:
    """Note which PCs are let go."""
    registry.set_setting(MOVED, json.dumps(sorted(pcs)))


def pcs_called(registry: Registry, names: Iterable[str]) -> dict[str, str]:
    """Ids of the member PCs with these names or ids (of any device), and their names. Raises
    UserError for one that is no member."""
    nodes = [one for one in registry.list_nodes() if one.removed is None]
    called = {one.node_id: one.name for one in nodes}
    found = {}
    for name in names:
        pcs = {one.pc for one in nodes if name in (one.node_id, one.name)}
        if len(pcs) != 1:
            raise UserError(f"No PC here is called {name!r:.60}: molink node list shows who is in.")
        (pc,) = pcs
        found[pc] = called.get(pc, pc)
    return found


def move(old: Registry, new: Registry, pcs: Iterable[str]) -> None:
    """Let PCs go from the coordinator of one registry to the other's, which knows them then. A
    call that was interrupted may be repeated."""
    going = frozenset(pcs)
    for one in old.list_nodes():
        if one.pc in going and one.removed is None:
            new.adopt(one)
    set_moved(new, moved_pcs(new) - going)
    set_moved(old, moved_pcs(old) | going)
