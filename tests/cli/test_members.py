"""`molink invite` and `molink node` over a registry on disk."""

import json
import re
import socket
import sqlite3
import time
from contextlib import contextmanager
from datetime import datetime
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from click.testing import CliRunner

from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KEY_PREFIX, KeyStore
from molink.cli.main import cli
from molink.cli.members import UNSEEN
from molink.cli.own_server import is_taken, live_nodes
from molink.config.data_dir import api_socket, data_dir
from molink.control.identity import KeyPair
from molink.control.messages.invites import Invite
from molink.control.messages.joining import request_to_join
from molink.control.private_file import private_socket
from molink.control.registry.registry import Registry
from molink.control.registry.succession import set_moved
from molink.errors import UserError
from molink.terminal.key_link import qr_code
from molink.terminal.tables import duration_s, local_time, show_rows
from tests.scripted_server import running

URL, API_URL = "https://10.0.0.1:8003", "http://10.0.0.1:8000"
BODY = {"nodes": [{"id": "a", "state": "serving"}]}


@pytest.fixture(autouse=True)
def live(monkeypatch):
    """What the coordinator tells of its nodes; None: it does not run."""
    told = {"nodes": None}
    monkeypatch.setattr("molink.cli.members.live_nodes", lambda url, key: told["nodes"])
    return told


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "molink"


@pytest.fixture
def registry(home):
    registry = Registry.open(home)
    registry.url, registry.api_url = URL, API_URL
    yield registry
    registry.close()


def ran(*words: str):
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def run(*words: str) -> str:
    return ran(*words).output


def made(*words: str) -> Invite:
    line = ran("invite", *words).stdout
    assert line.startswith("molink agent join molink1-") and line.count("\n") == 1
    return Invite.parse(line.split()[-1])


def join(registry: Registry, invite: Invite, number: int = 1, name: str = "attic"):
    request = request_to_join(invite, name, "0.1", 0.0)
    public = KeyPair.of_secret(number.to_bytes(32, "big")).public
    return registry.admit(public, request, time.time()).node


def test_an_invite_is_one_line_that_lets_somebody_in(registry):
    invite = made("--expires", "30m", "--uses", "2", "--name", "lan party")
    assert invite.url == URL
    (listed,) = registry.list_invites()
    assert (listed.uses_total, listed.name) == (2, "lan party")
    assert listed.expires - listed.created == 1800
    assert join(registry, invite).name == "attic"


def test_an_invite_says_for_whom_and_how_long(registry):
    said = ran("invite", "--uses", "1", "--expires", "7d").stderr
    (listed,) = registry.list_invites()
    assert "One PC may join" in said and f"{local_time(listed.expires):%Y-%m-%d %H:%M}" in said
    assert f"molink invite revoke {listed.invite_id}" in said
    assert "5 PCs may join" in ran("invite").stderr


@pytest.mark.parametrize(("typed", "removed"), [("y\n", True), ("n\n", False), ("", False)])
def test_at_a_terminal_a_removal_is_asked_for(registry, monkeypatch, typed, removed):
    join(registry, made())
    monkeypatch.setattr("molink.cli.members._at_terminal", lambda: True)
    result = CliRunner().invoke(cli, ["node", "remove", "attic"], input=typed)
    assert (result.exit_code == 0) is removed
    (node,) = registry.list_nodes()
    assert (node.removed is not None) is removed


def test_an_invite_may_be_carried_by_phone(registry):
    result = ran("invite", "--qr")
    assert qr_code(result.stdout.strip()) in result.stderr
    assert Invite.parse(result.stdout)


def test_a_removed_node_can_be_left_out_of_lists(registry):
    join(registry, made())
    run("node", "remove", "attic")
    assert "attic" in run("node", "list")
    assert "is in no list any more" in run("node", "forget", "attic")
    assert "attic" not in run("node", "list")


def test_a_pc_that_has_left_is_forgotten_without_being_removed(registry, live):
    node = join(registry, made())
    live["nodes"] = {node.node_id: {"state": "left"}}
    assert "is in no list any more" in run("node", "forget", "attic")
    assert "attic" not in run("node", "list")


def test_without_a_cluster_every_command_says_what_to_do(home):
    for words in (["invite"], ["invite", "list"], ["node", "list"], ["node", "remove", "x"]):
        with pytest.raises(UserError, match="run molink up first"):
            CliRunner().invoke(cli, words, catch_exceptions=False)
    assert not home.exists()


def test_with_an_address_an_invite_needs_no_molink_up(home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    invite = made("--url", "https://ring.example.org/", "--data-dir", str(elsewhere))
    assert invite.url == "https://ring.example.org" and not home.exists()
    assert Registry.open(elsewhere).coordinator.public == invite.coordinator_key


def test_the_folder_may_stand_before_the_subcommand(home, tmp_path):
    elsewhere = str(tmp_path / "elsewhere")
    invite = made("--url", URL, "--data-dir", elsewhere)
    assert invite.invite_id in run("invite", "--data-dir", elsewhere, "list")


def test_invites_are_listed_without_their_secrets(registry):
    assert "There are no invites" in run("invite", "list")
    invite = made("--name", "lan party")
    (row,) = json.loads(run("invite", "list", "--json"))
    assert row.keys() >= {"id", "name", "state", "uses_left", "uses_total", "created", "expires"}
    assert (row["id"], row["state"], row["uses_left"]) == (invite.invite_id, "usable", 5)
    header, line = run("invite", "list").splitlines()
    assert header.split()[:3] == ["id", "name", "state"]
    assert line.startswith(f"{invite.invite_id}  lan party  usable")
    assert line.index("usable") == header.index("state")


@pytest.mark.parametrize("by_name", [False, True])
def test_an_invite_is_revoked(registry, by_name):
    invite = made("--name", "party")
    assert "is revoked" in run("invite", "revoke", "party" if by_name else invite.invite_id)
    assert json.loads(run("invite", "list", "--json"))[0]["state"] == "revoked"
    with pytest.raises(UserError, match="no usable invite"):
        CliRunner().invoke(cli, ["invite", "revoke", "party"], catch_exceptions=False)


def test_nodes_are_listed_and_removed(registry):
    assert "No PC has joined yet" in run("node", "list")
    node = join(registry, made())
    (row,) = json.loads(run("node", "list", "--json"))
    assert (row["id"], row["name"], row["removed"]) == (node.node_id, "attic", None)
    told = run("node", "remove", "attic")
    assert f"molink invite revoke {node.invite_id}" in told
    assert json.loads(run("node", "list", "--json"))[0]["removed"] is not None
    assert registry.changed() and registry.member(node.node_id) is None
    assert node.password not in run("node", "list", "--json") + run("node", "list")


def test_a_port_is_taken_while_anybody_listens_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://192.0.2.1:{server.getsockname()[1]}"
        assert is_taken(url)
    assert not is_taken(url)


def test_a_list_of_nodes_says_what_each_does_now(registry, live, monkeypatch):
    node = join(registry, made())
    monkeypatch.setattr("molink.cli.members.is_taken", lambda url: False)
    assert "no coordinator answers at http://10.0.0.1:8000" in run("node", "list")
    monkeypatch.setattr("molink.cli.members.is_taken", lambda url: True)
    assert "another server does at http://10.0.0.1:8000" in run("node", "list")
    now = {"state": "standby", "layers": None, "device": "cpu", "reason": "would slow the ring"}
    live["nodes"] = {node.node_id: now}
    header, line = run("node", "list").splitlines()
    assert header.split()[2:5] == ["state", "layers", "device"]
    assert line.split()[:5] == [node.node_id, "attic", "standby", "-", "cpu"]
    assert line.endswith("would slow the ring")
    live["nodes"] = {node.node_id: now | {"state": "serving", "layers": [0, 4]}}
    assert " serving  0-3 " in run("node", "list")
    (row,) = json.loads(run("node", "list", "--json"))
    assert (row["state"], row["layers"]) == ("serving", [0, 4])
    run("node", "remove", "attic")
    assert " removed  " in run("node", "list")


def test_who_is_lost_has_a_reason_and_no_layers(registry, live):
    node = join(registry, made())
    live["nodes"] = {}
    assert UNSEEN in run("node", "list") and " lost " in run("node", "list")
    live["nodes"] = {node.node_id: {"state": "lost", "layers": [0, 4], "reason": "Its PC is off."}}
    listed = run("node", "list")
    assert "Its PC is off." in listed and "0-3" not in listed
    set_moved(registry, [node.node_id])
    live["nodes"] = {}
    (row,) = json.loads(run("node", "list", "--json"))
    assert row["state"] == "moved" and "node move" in row["reason"]


def test_a_pc_is_listed_and_removed_with_its_further_devices(registry):
    pc = join(registry, made())
    own = KeyPair.of_secret((1).to_bytes(32, "big"))
    asked = request_to_join(None, "attic (2)", "0.1", 0.0)
    device = registry.admit(own.for_device(1).public, asked, time.time(), own.public).node
    rows = json.loads(run("node", "list", "--json"))
    assert [(row["id"], row["pc"]) for row in rows] == [
        (pc.node_id, None),
        (device.node_id, pc.node_id),
    ]
    told = run("node", "remove", "attic (2)")
    assert f"Node {pc.node_id} (attic) is removed, with 1 further device." in told
    assert registry.member(device.node_id) is None


def test_a_removed_node_whose_invite_is_spent_needs_no_further_advice(registry):
    node = join(registry, made("--uses", "1"))
    assert "revoke" not in run("node", "remove", node.node_id)


def test_times_carry_their_zone(capsys):
    rows = [{"created": local_time(60.0)}]
    show_rows(rows, True, "")
    (read,) = json.loads(capsys.readouterr().out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00[+-]\d\d:\d\d", read["created"])
    assert datetime.fromisoformat(read["created"]).timestamp() == 60.0
    show_rows(rows, False, "")
    assert re.search(r"\d\d-\d\d \d\d:\d\d[+-]\d\d:\d\d$", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86400), ("1.5d", 129600)]
)
def test_lengths_oflocal_time(text, seconds):
    assert duration_s("--expires", text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1w", "24 h", "9" * 400 + "d", "1h\n"])
def test_what_is_no_length_oflocal_time(text):
    with pytest.raises(UserError, match="--expires takes a length of time"):
        duration_s("--expires", text)


def test_a_given_folder_counts_before_the_users_own(tmp_path, monkeypatch):
    assert data_dir("molink") == tmp_path / "molink"
    assert data_dir("molink", "/srv/ring").as_posix() == "/srv/ring"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_dir("molink") == tmp_path / ".local/share/molink"


@pytest.fixture
def coordinator(home):
    """Of this data directory: answers with what a test puts there, and notes as whom it is asked;
    it runs while `listening` does."""

    class Coordinator:
        answer, keys = BODY, []

        @contextmanager
        def listening(self, data_dir=home):
            async def get(request):
                self.keys.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
                return web.json_response(self.answer)

            app = web.Application()
            app.router.add_get("/cluster", get)
            with running(app, data_dir) as url:
                yield f"http://name.invalid:{urlsplit(url).port}"

    home.mkdir(exist_ok=True)
    return Coordinator()


def test_the_coordinator_of_this_directory_is_asked_whatever_its_public_name(coordinator, home):
    with coordinator.listening() as url:
        assert live_nodes(url, None) == {"a": BODY["nodes"][0]}
    (key,) = coordinator.keys
    keys = LiveKeys(KeyStore.open(home))
    assert key.startswith(KEY_PREFIX) and keys.find(key) is None, "it ends with the command"
    keys.store.close()


def test_whoever_else_listens_at_its_port_is_not_asked(coordinator, home, tmp_path):
    with coordinator.listening(tmp_path) as url:
        assert live_nodes(url, None) is None
        private_socket(api_socket(home, urlsplit(url).port)).close()
        assert live_nodes(url, None) is None, "a socket that was left is no proof"
    assert coordinator.keys == []


@pytest.mark.parametrize("body", ["", [], {"nodes": [{}]}, {"model": "demo"}])
def test_what_is_no_coordinator_is_none(coordinator, body):
    coordinator.answer = body
    with coordinator.listening() as url:
        assert live_nodes(url, None) is None


@pytest.mark.parametrize("url", [None, "", "http://127.0.0.1:9", "file:///etc/passwd"])
def test_nobody_answers(url):
    assert live_nodes(url, None) is None


def test_where_no_key_can_be_made_the_coordinator_is_asked_without(coordinator, monkeypatch):
    def full(*arguments, **options):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(KeyStore, "temporary_admin", full)
    with coordinator.listening() as url:
        assert live_nodes(url, None) == {"a": BODY["nodes"][0]}
    assert coordinator.keys == [""]


def test_names_from_afar_are_printed_without_what_a_terminal_obeys(capsys):
    from molink.terminal.tables import show_rows

    show_rows([{"name": "attic\x1b[2J\u202e", "reason": "a\nb"}], as_json=False, nothing="")
    assert capsys.readouterr().out.splitlines()[1] == "attic\ufffd[2J\ufffd  a b"
