"""A coordinator beside another: the copy of its cluster, and who gets its ports in the end."""

import asyncio
import socket
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from molink.api.keys.store import KeyStore
from molink.api.server import free_ports, start_api
from molink.cli.main import cli
from molink.cli.own_server import socket_of
from molink.cli.upkeep.listening import Listening
from molink.cli.upkeep.taking_over import (
    Following,
    TakingOver,
    check_old,
    check_sockets,
    copy_cluster,
)
from molink.config.data_dir import api_socket, only_one
from molink.control.private_file import private_socket
from molink.control.registry.registry import REVISIONS_LOST_MAX, Registry
from molink.control.registry.succession import (
    Ports,
    Successor,
    moved_pcs,
    set_moved,
    set_successor,
    successor_of,
)
from molink.coordinator.start import LOCK_FILE
from molink.errors import UserError


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "old"
    with closing(Registry.open(folder)) as registry:
        registry.url, registry.api_url = "https://home:8003", "http://home:8000"
        registry.broker_port = 8001
        set_successor(registry, Successor("x", 1, 1, ()))
        set_moved(registry, ["a" * 16])
    return folder


def test_the_copy_is_of_the_same_cluster_and_numbers_its_orders_higher(old, tmp_path):
    new = tmp_path / "new"
    for _ in range(2):
        copy_cluster(old, new)
    with closing(Registry.open(old)) as before, closing(Registry.open(new)) as after:
        assert after.coordinator.public == before.coordinator.public
        assert REVISIONS_LOST_MAX < after.next_revision() < 2 * REVISIONS_LOST_MAX
        assert successor_of(after) is None and not moved_pcs(after)
        assert moved_pcs(before)


def test_a_copy_that_was_interrupted_is_made_anew(old, tmp_path, monkeypatch):
    def interrupt(registry):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("molink.control.registry.registry.skip_revisions", interrupt)
        with pytest.raises(KeyboardInterrupt):
            copy_cluster(old, tmp_path / "new")
    copy_cluster(old, tmp_path / "new")
    with closing(Registry.open(tmp_path / "new")) as after:
        assert after.next_revision() > REVISIONS_LOST_MAX and not moved_pcs(after)


def test_what_cannot_be_copied_is_refused(old, tmp_path):
    with pytest.raises(UserError, match="another folder than --data-dir"):
        copy_cluster(old, old)
    with pytest.raises(UserError, match="There is no cluster"):
        copy_cluster(tmp_path / "none", tmp_path / "new")
    with closing(Registry.open(tmp_path / "other")) as other:
        assert other.coordinator
    with pytest.raises(UserError, match="holds another cluster"):
        copy_cluster(old, tmp_path / "other")


@pytest.mark.parametrize(("url", "api_tls"), [("https://home:8000", False), ("http://home", True)])
def test_the_old_address_goes_on_with_or_without_tls(old, tmp_path, url, api_tls):
    with closing(Registry.open(old)) as registry:
        registry.api_url = url
    with pytest.raises(UserError, match=r"(give it|leave out) --api-tls"):
        check_old(old, tmp_path / "new", "127.0.0.1", api_tls=api_tls)
    check_old(old, tmp_path / "new", "127.0.0.1", api_tls=not api_tls)


def test_one_that_runs_must_listen_on_this_machine(old, tmp_path):
    with socket.socket() as api, socket.socket() as agents:
        for one in (api, agents):
            one.bind(("127.0.0.1", 0))
            one.listen()
        ports = [one.getsockname()[1] for one in (api, agents)]
        with closing(Registry.open(old)) as registry:
            registry.api_url = f"http://home:{ports[0]}"
            registry.url = f"https://home:{ports[1]}"
        with only_one("A coordinator", old / LOCK_FILE):
            check_old(old, tmp_path / "new", "127.0.0.1", api_tls=False)
            agents.close()
            with pytest.raises(UserError, match=f"not at port {ports[1]} here: start this one on"):
                check_old(old, tmp_path / "new", "127.0.0.1", api_tls=False)
        check_old(old, tmp_path / "new", "127.0.0.1", api_tls=False)


def test_one_coordinator_takes_over_at_a_time(old, tmp_path):
    with tempfile.TemporaryDirectory(prefix="m") as other:
        with closing(Registry.open(old)) as registry:
            set_successor(registry, Successor(other, 9010, 9013, ("third",)))
        with closing(private_socket(api_socket(Path(other), 9010))) as listening:
            listening.listen()
            with pytest.raises(UserError, match=f"of {other} takes over from"):
                check_old(old, tmp_path / "new", "127.0.0.1", api_tls=False)
            check_old(old, Path(other), "127.0.0.1", api_tls=False)
        check_old(old, tmp_path / "new", "127.0.0.1", api_tls=False)


async def test_what_is_revoked_at_the_first_holds_here(old, tmp_path):
    copy_cluster(old, new := tmp_path / "new")
    with (
        closing(Registry.open(old)) as before,
        closing(Registry.open(new)) as here,
        closing(KeyStore.open(old)) as keys,
        Following.open(old, before, here) as following,
    ):
        keys.create(time.time(), name="anna")
        before.make_invite(60.0, 1, "party", time.time())
        following.look()
        keys.revoke("anna", time.time())
        before.revoke("party", time.time())
        following.look()
        with closing(KeyStore.open(new)) as ours:
            assert [one.key.state(0.0) for one in ours.list_keys()] == ["revoked"]
        assert [one.state(0.0) for one in here.list_invites()] == ["revoked"]


@pytest.mark.parametrize(("made", "fits"), [(2, True), (1, False)])
def test_a_folder_without_both_sockets_is_refused(made, fits):
    with tempfile.TemporaryDirectory(prefix="m") as top:
        own = Successor(top, 9000, 9003, ("new",))
        for port in (9000, 9003)[:made]:
            api_socket(Path(top), port).touch()
        if fits:
            check_sockets(own)
            return
        with pytest.raises(UserError, match=f"in {top}: give a --data-dir whose path is shorter"):
            check_sockets(own)


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused(tmp_path):
    folder = tmp_path / ("n" * 120)
    folder.mkdir()
    for port in (9000, 9003):
        api_socket(folder, port).touch()
    with pytest.raises(UserError, match="shorter"):
        check_sockets(Successor(str(folder), 9000, 9003, ("new",)))


async def test_the_ports_come_when_the_old_one_ends_and_it_cannot_start_again(
    old, tmp_path, monkeypatch
):
    copy_cluster(old, new := tmp_path / "new")
    own, ports = Successor(str(new), 9000, 9003, ("new",)), asyncio.Queue()
    known = asyncio.Event()
    monkeypatch.setattr(
        "molink.control.registry.succession.set_successor",
        lambda *given: (set_successor(*given), known.set()),
    )

    async def listen(given):
        ports.put_nowait(given)

    with closing(Registry.open(old)) as before, closing(Registry.open(new)) as registry:
        set_moved(registry, ["b" * 16])
        with only_one("A coordinator", old / LOCK_FILE):
            taking = asyncio.create_task(TakingOver(old, own, registry, listen).run())
            async with asyncio.timeout(10):
                await known.wait()
            assert ports.empty()
        async with asyncio.timeout(10):
            taken = await ports.get()
            assert taken == Ports(frozenset({8000}), frozenset({8003}), frozenset({8001}))
        with (
            pytest.raises(UserError, match="runs with"),
            only_one("A coordinator", old / LOCK_FILE),
        ):
            pass
        taking.cancel()
        await asyncio.wait([taking])
        assert registry.url == "https://home:8003" and not moved_pcs(registry)
        assert Ports.of(registry) == taken, "who replaces this one takes them as well"
        assert successor_of(before) == own, "a PC was moved: it comes back"


async def test_owners_are_let_in_by_a_port_that_was_taken_over_too():
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        runner = await start_api(web.Application(), "127.0.0.1", 0, data_dir=Path(folder))
        try:
            (port,) = free_ports("127.0.0.1", 1)
            url = f"http://127.0.0.1:{port}"
            assert socket_of(url, folder) is None
            await Listening(runner, None, Path(folder)).also_at("127.0.0.1", port)
            assert socket_of(url, folder) == api_socket(Path(folder), port)
        finally:
            await runner.cleanup()
        assert socket_of(url, folder) is None


def test_nobody_is_moved_without_another_coordinator(old):
    with closing(Registry.open(old)) as registry:
        set_successor(registry, None)
    done = CliRunner().invoke(cli, ["node", "move", "anna", "--data-dir", str(old)])
    assert isinstance(done.exception, UserError | SystemExit)
    assert "No other coordinator stands beside" in f"{done.output}{done.exception}"
