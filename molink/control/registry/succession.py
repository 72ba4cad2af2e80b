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
from urllib.parse import urlsplit

from molink.control.registry.registry import Registry
from molink.errors import UserError

SUCCESSOR, MOVED, TOOK_REST, TAKEN = "successor", "moved_pcs", "took_rest", "taken_ports"
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


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports at which a coordinator is asked: by users, by agents, and at its own broker."""

    api: frozenset[int] = frozenset()
    agents: frozenset[int] = frozenset()
    broker: frozenset[int] = frozenset()

    @classmethod
    def of(cls, registry: Registry) -> "Ports":
        """Ports of a registry's coordinator: of its last start, and those that it has taken over
        from others."""
        own = _port(registry.api_url), _port(registry.url), registry.broker_port
        taken = json.loads(registry.setting(TAKEN) or "[[], [], []]")
        return cls(*(frozenset([one, *more]) - {0} for one, more in zip(own, taken, strict=True)))

    def written(self) -> str:
        """The ports as the registry keeps those that were taken over."""
        return json.dumps([sorted(one) for one in (self.api, self.agents, self.broker)])


def take_ports(old: Registry, new: Registry) -> Ports:
    """Note in the registry of the coordinator that goes on alone that the ports of the other one
    are its own, and that PCs are invited there; all ports that it is to listen at."""
    theirs, ours = Ports.of(old), Ports.of(new)
    ports = Ports(theirs.api | ours.api, theirs.agents | ours.agents, theirs.broker | ours.broker)
    new.set_setting(TAKEN, ports.written())
    if old.url is not None:
        new.url = old.url
    return ports


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


def follow(old: Registry, new: Registry, now: float) -> None:
    """Know in the registry of the coordinator that came later which invites were made, used or
    revoked at the first, and which PCs were removed there."""
    new.adopt_invites(old, now)
    new.adopt(one for one in old.lasting_nodes() if one.removed is not None)


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


def _port(url: str | None) -> int:
    return (urlsplit(url).port if url else None) or 0
