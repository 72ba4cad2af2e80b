"""`molink key`, and the key that `molink node list` makes for itself."""

import json
import sqlite3

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.control.api_keys.live_keys import LiveKeys
from molink.control.api_keys.store import KEY_PREFIX, KeyStore, KeyUsage
from molink.control.identity import KeyPair
from molink.control.messages.joining import request_to_join
from molink.control.registry.registry import Registry
from molink.errors import UserError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "molink"


def run(*words: str):
    result = CliRunner().invoke(cli, ("key", *words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def listed(*words: str):
    return json.loads(run("list", "--json", *words).stdout)


def test_a_key_is_shown_once():
    made = run("create", "--name", "anna", "--rate", "60/min", "--expires", "30d")
    secret = made.stdout.strip()
    assert secret.startswith(KEY_PREFIX) and "\n" not in secret
    assert secret not in made.stderr and "again" in made.stderr
    (row,) = listed()
    assert (row["name"], row["state"], row["opens"]) == ("anna", "usable", "inference")
    assert (row["rate"], row["requests"], row["last_used"]) == ("60/min", 0, None)
    for shown in (run("list").output, json.dumps(row)):
        assert secret not in shown


def test_a_full_disk_is_one_sentence(monkeypatch):
    def create(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(KeyStore, "create", create)
    with pytest.raises(UserError, match=r"disk is full\): is its disk full or gone\?"):
        CliRunner().invoke(cli, ("key", "create"), catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("priority", ["-5", "0", "10"])
def test_a_list_shows_the_priority_of_each(priority):
    run("create", "--priority", priority)
    assert listed()[0]["priority"] == int(priority)


def test_a_running_server_knows_it(home):
    running = LiveKeys(KeyStore.open(home))
    secret = run("create", "--admin").stdout.strip()
    assert running.find(secret).is_admin
    running.store.close()


def test_a_list_has_what_was_used(home):
    run("create", "--name", "anna", "--admin")
    store = KeyStore.open(home)
    store.add_usage({store.list_keys()[0].key.key_id: KeyUsage(2, 30, 400, 0.0)})
    store.close()
    (row,) = listed()
    assert (row["requests"], row["prompt_tokens"], row["answer_tokens"]) == (2, 30, 400)
    assert (row["opens"], row["last_used"][:3]) == ("everything", "197")


def test_revoking(tmp_path):
    elsewhere = ("--data-dir", str(tmp_path / "other"))
    run("create", "--name", "anna", *elsewhere)
    assert listed() == []
    assert "is revoked" in run("revoke", "anna", *elsewhere).output
    assert listed(*elsewhere)[0]["state"] == "revoked"
    assert "molink key create makes one" in run("list").output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "--rate", "many"), "--rate takes requests a minute"),
        (("create", "--rate", "0"), "--rate"),
        (("create", "--priority", "2147483648"), "A key's priority is -2147483647 to 2147483647"),
        (("create", "--expires", "soon"), "--expires takes a length of time"),
        (("revoke", "nobody"), "no usable key 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_said(words, sentence):
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(cli, ("key", *words), catch_exceptions=False)


def test_a_folder_that_was_mistyped_is_not_made(tmp_path):
    elsewhere = tmp_path / "mistyped"
    assert listed("--data-dir", str(elsewhere)) == []
    words = ("key", "revoke", "anna", "--data-dir", str(elsewhere))
    with pytest.raises(UserError, match="nor any other"):
        CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)
    assert not elsewhere.exists()


def test_a_list_of_nodes_needs_no_key_to_be_typed(home, monkeypatch):
    """The one that it makes opens everything while it asks, and nothing afterwards."""
    seen = []
    registry = Registry.open(home)
    registry.api_url = "http://10.0.0.1:8000"
    invite = registry.make_invite(60, 1, "", 0.0, "https://10.0.0.1:8003")
    registry.admit(KeyPair.generate().public, request_to_join(invite, "attic", "0.1", 0.0), 1.0)
    registry.close()
    run("create")
    running = LiveKeys(KeyStore.open(home))

    def ask(url, key):
        seen.append((key, running.find(key).is_admin))

    monkeypatch.setattr("molink.cli.members.live_nodes", ask)
    CliRunner().invoke(cli, ("node", "list"), catch_exceptions=False)
    ((key, was_admin),) = seen
    assert was_admin and running.find(key) is None
    running.store.close()
