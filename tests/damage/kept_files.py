"""Files that coordinator and agent keep: how each is written, and what a restart reads of it.

`restart` calls what the real start calls, writes what that writes, and returns what is still known
of what was kept. It takes the folder of one program on one PC; what lies on others is beside it.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from molink.api.access import open_access
from molink.api.keys.store import MIGRATIONS as KEYS
from molink.api.keys.store import KeyStore
from molink.control.certificate import own_certificate
from molink.control.identity import KeyPair, load_or_make_key
from molink.control.registry.database import MIGRATIONS as REGISTRY
from molink.control.registry.registry import Registry
from molink.control.sqlite_file import open_database
from molink.coordinator.nodes.node import Contribution
from molink.coordinator.reports.ledger import MIGRATIONS as LEDGER
from molink.coordinator.reports.ledger import Ledger
from molink.serving.answers.live_state import MIGRATIONS as LIVE
from molink.serving.answers.live_state import LiveState
from molink_agent.cli.join import KEY_FILE
from molink_agent.limits.limits_file import LIMITS_FILE, LimitsFile
from molink_agent.weights import ensure_weights
from molink_scheduler.units import GB
from tests.agent.daemon.agents import membership
from tests.agent.weights.stored import needed_of, tensors_in
from tests.agent.weights.weights_server import LAYERS, QUICK, ShelfServer, write_model
from tests.control.registry.joining import NOW, URL, key, request

NOTHING = "nothing"
"""What a restart returns that knows nothing of what was kept, and serves."""

NEWER_STEP = "CREATE TABLE of_a_newer_version (a)"


SPARING = replace(QUICK, disk_reserve_bytes=2**20)
"""An agent leaves room on the disk, which a full one has not."""


@dataclass(frozen=True)
class KeptFile:
    """One kind of file."""

    name: str
    path: Callable[[Path], Path]
    make: Callable[[Path], None]
    restart: Callable[[Path], str]
    newer: Callable[[Path], None]
    """Make it one that a newer MoLink has written."""


def _newer_steps(name: str, steps: tuple[str, ...]) -> Callable[[Path], None]:
    return lambda folder: open_database(folder / name, (*steps, NEWER_STEP)).close()


def _named(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name


# -- the coordinator's ----------------------------------------------------------------------------


def make_registry(folder: Path) -> None:
    with closing(Registry.open(folder)) as registry:
        assert registry.coordinator and registry.next_revision()
        registry.url = URL
        invite = registry.make_invite(3600.0, 5, "", NOW)
        registry.admit(key(1), request(invite, "anna"), NOW)


def restart_registry(folder: Path) -> str:
    with closing(Registry.open(folder)) as registry:
        assert registry.coordinator and registry.next_revision()
        registry.url = URL
        return ", ".join(node.name for node in registry.list_nodes()) or NOTHING


def make_live(folder: Path) -> None:
    with closing(LiveState.open(folder, "m", time.time())) as live:
        live.keep_ring(7, "a ring")


def restart_live(folder: Path) -> str:
    with closing(LiveState.open(folder, "m", time.time())) as live:
        rings = live.rings()
        live.keep_ring(8, "another")
    return ", ".join(ring for _, ring in rings) or NOTHING


def make_ledger(folder: Path) -> None:
    with closing(Ledger.open(folder)) as ledger, ledger.together():
        ledger.add("n1", "anna", Contribution(9.0, 8, 7))


def restart_ledger(folder: Path) -> str:
    with closing(Ledger.open(folder)) as ledger:
        return ", ".join(ledger.all()) or NOTHING


SECRET_FILE = "secret"
"""What a user was given: it lies beside the folder."""


def make_keys(folder: Path) -> None:
    with closing(KeyStore.open(folder)) as store:
        _, secret = store.create(time.time(), name="ben")
    (beside(folder) / SECRET_FILE).write_text(secret)


def restart_keys(folder: Path) -> str:
    return asyncio.run(_restart_keys(folder))


async def _restart_keys(folder: Path) -> str:
    secret = (beside(folder) / SECRET_FILE).read_text()
    async with open_access("127.0.0.1", folder, [], no_keys=False, make=True) as access:
        found = access.keys.find(secret)
        return found.name if found else NOTHING


def make_certificate(folder: Path) -> None:
    (beside(folder) / "pinned").write_text(own_certificate(folder).pinned.certificate)


def restart_certificate(folder: Path) -> str:
    pinned = own_certificate(folder).pinned.certificate
    return "pinned" if pinned == (beside(folder) / "pinned").read_text() else NOTHING


def newer_certificate(folder: Path) -> None:
    path = folder / "tls.pem"
    path.write_text(path.read_text().replace("CERTIFICATE", "MOLINK IDENTITY 2"))


# -- an agent's -----------------------------------------------------------------------------------


def make_identity(folder: Path) -> None:
    pair = load_or_make_key(folder / KEY_FILE)
    (beside(folder) / "node_id").write_text(pair.node_id)


def restart_identity(folder: Path) -> str:
    pair: KeyPair = load_or_make_key(folder / KEY_FILE)
    return "node" if pair.node_id == (beside(folder) / "node_id").read_text() else NOTHING


def newer_identity(folder: Path) -> None:
    path = folder / KEY_FILE
    path.write_text(json.dumps({"version": 2, "sealed_key": "x" * 80}))


def make_limits(folder: Path) -> None:
    LimitsFile(folder).set("memory_gb", "3")
    LimitsFile(folder).set("cache_disk_gb", "2")


def restart_limits(folder: Path) -> str:
    """As an agent is put together, which starts nothing yet."""
    from molink_agent.daemon.process import build_agent
    from tests.agent.daemon.agents import PAIR

    limits = build_agent(folder, PAIR, membership()).pc.limits.limits
    return f"{limits.memory_bytes / GB:g} and {limits.cache_disk_bytes / GB:g}"


def newer_limits(folder: Path) -> None:
    with (folder / LIMITS_FILE).open("a") as file:
        file.write("\nteleports = 4\n")


def make_weights(folder: Path) -> None:
    write_model(beside(folder) / "model")
    assert restart_weights(folder) == "all of them"


def restart_weights(folder: Path) -> str:
    return asyncio.run(_restart_weights(folder))


async def _restart_weights(folder: Path) -> str:
    model = beside(folder) / "model"
    server = ShelfServer(model, beside(folder) / "hashes")
    await server.start()
    try:
        view = await ensure_weights(server.source, range(LAYERS), folder / "weights", SPARING)
    finally:
        await server.stop()
    whole = needed_of(model, range(LAYERS), LAYERS, tied=False)
    return "all of them" if tensors_in(view) == whole else NOTHING


def one_part(folder: Path) -> Path:
    return next((folder / "weights").rglob("parts/layer-00002.*"))


def newer_part(folder: Path) -> None:
    """A part of another form, and what nobody knows beside it."""
    part = one_part(folder)
    part.write_bytes(b"MOLINK2\0" + part.read_bytes())
    part.with_name(f"{part.name}.index2").write_bytes(b"{}")


def beside(folder: Path) -> Path:
    """Where other PCs and people have theirs, on another disk."""
    place = folder.parent.with_name(f"{folder.parent.name}-others") / folder.name
    place.mkdir(parents=True, exist_ok=True)
    return place


FILES = (
    KeptFile(
        "registry.db",
        _named("registry.db"),
        make_registry,
        restart_registry,
        _newer_steps("registry.db", REGISTRY),
    ),
    KeptFile(
        "live.sqlite",
        _named("live.sqlite"),
        make_live,
        restart_live,
        _newer_steps("live.sqlite", LIVE),
    ),
    KeptFile(
        "ledger.sqlite",
        _named("ledger.sqlite"),
        make_ledger,
        restart_ledger,
        _newer_steps("ledger.sqlite", LEDGER),
    ),
    KeptFile(
        "keys.sqlite",
        _named("keys.sqlite"),
        make_keys,
        restart_keys,
        _newer_steps("keys.sqlite", KEYS),
    ),
    KeptFile(
        "tls.pem", _named("tls.pem"), make_certificate, restart_certificate, newer_certificate
    ),
    KeptFile(KEY_FILE, _named(KEY_FILE), make_identity, restart_identity, newer_identity),
    KeptFile("weights", one_part, make_weights, restart_weights, newer_part),
    KeptFile(LIMITS_FILE, _named(LIMITS_FILE), make_limits, restart_limits, newer_limits),
)
BY_NAME = {file.name: file for file in FILES}
