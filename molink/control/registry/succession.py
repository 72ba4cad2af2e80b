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

SUCCESSOR, MOVED, TOOK_REST = "successor", "moved_pcs", "took_rest"
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
    return _pcs(registry.setting(MOVED))


def set_moved(registry: Registry, pcs: Iterable[str]) -> None:
    """Note which PCs are let go."""
    registry.set_setting(MOVED, _written(pcs))


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
    new.adopt(one for one in old.list_nodes() if one.pc in going and one.removed is None)
    new.change_setting(MOVED, lambda text: _written(_pcs(text) - going))
    old.change_setting(MOVED, lambda text: _written(_pcs(text) | going))


def take_rest(old: Registry, new: Registry) -> None:
    """Know in the registry of the coordinator that goes on alone who has joined at the other one,
    which has ended, and who was removed there; nobody is moved any more. Done once for each end,
    since members change here from then on."""
    if not new.setting(TOOK_REST):
        moved = moved_pcs(old)
        rest = old.lasting_nodes()
        new.adopt(one for one in rest if one.removed is not None or one.pc not in moved)
        new.set_setting(TOOK_REST, "1")
    set_moved(new, ())


def rest_is_left(new: Registry) -> None:
    """Note that the other coordinator runs, and may come to know others."""
    if new.setting(TOOK_REST):
        new.set_setting(TOOK_REST, "")


def _pcs(text: str | None) -> frozenset[str]:
    try:
        told = json.loads(text or "[]")
    except ValueError:
        return frozenset()
    return frozenset(map(str, told)) if isinstance(told, list) else frozenset()


def _written(pcs: Iterable[str]) -> str:
    return json.dumps(sorted(pcs))
