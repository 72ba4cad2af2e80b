"""`molink key`: who gets one, what it opens, and its end."""

import csv
import json
import sqlite3
import time
from contextlib import closing

import pytest
from click.testing import CliRunner

from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KEY_PREFIX, KeyStore, KeyUsage
from molink.cli.keys import known_url
from molink.cli.main import cli
from molink.control.registry.registry import Registry
from molink.errors import UserError
from molink.terminal.key_link import key_link, qr_code


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
    assert (row["name"], row["state"], row["scope"]) == ("anna", "usable", "inference")
    assert (row["rate"], row["requests"], row["last_used"]) == ("60/min", 0, None)
    for shown in (run("list").output, json.dumps(row)):
        assert secret not in shown


def test_a_link_opens_the_page_with_the_key():
    made = run("create", "--url", "https://chat.example:8443/v1/")
    secret = made.stdout.strip()
    assert f"link has the key: https://chat.example:8443/#key={secret}\n" in made.stderr
    assert "▀" not in made.stderr, "nobody sees a code that is no terminal's"
    with pytest.raises(UserError, match="--url takes a URL"):
        command = ("key", "create", "--url", "chat.example")
        CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False)
    assert len(listed()) == 1


def test_the_address_is_the_one_that_the_coordinator_told_last(home):
    assert known_url(home) is None
    with closing(Registry.open(home)) as registry:
        assert known_url(home) is None
        registry.api_url = "http://127.0.0.1:8000"
    assert known_url(home) == "http://127.0.0.1:8000"


def test_a_code_holds_the_link():
    segno = pytest.importorskip("segno")
    link = key_link("http://192.168.1.7:8000", KEY_PREFIX + "A" * 43)
    modules = segno.make(link, error="l", micro=False).symbol_size(border=2)[0]
    lines = qr_code(link).splitlines()
    assert len(lines) == (modules + 1) // 2, "two rows a line"
    assert modules <= 80, "a terminal is as wide"


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


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        ((), "inference"),
        (("--scope", "inference"), "inference"),
        (("--scope", "watch"), "watch"),
        (("--scope", "admin"), "admin"),
        (("--admin",), "admin"),
    ],
)
def test_a_running_server_knows_it_and_what_it_opens(home, words, scope):
    running = LiveKeys(KeyStore.open(home))
    secret = run("create", *words).stdout.strip()
    assert running.find(secret).scope == scope == listed()[0]["scope"]
    running.store.close()


def test_a_rotated_key_is_known_by_both_secrets(home):
    first = run("create", "--name", "anna").stdout.strip()
    running = LiveKeys(KeyStore.open(home))
    rotated = run("rotate", "anna")
    second = rotated.stdout.strip()
    assert "ends in a day" in rotated.stderr and second not in rotated.stderr
    assert running.find(first).key_id == running.find(second).key_id
    assert running.find(first).expires is not None and running.find(second).expires is None
    running.store.close()


def test_a_list_has_what_was_used(home):
    run("create", "--name", "anna", "--admin")
    store = KeyStore.open(home)
    store.add_usage({store.list_keys()[0].key.key_id: KeyUsage(2, 30, 400, 0.0)}, 0.0)
    store.close()
    (row,) = listed()
    assert (row["requests"], row["prompt_tokens"], row["answer_tokens"]) == (2, 30, 400)
    assert (row["scope"], row["last_used"][:3]) == ("admin", "197")


def test_usage_of_each_day_as_a_table_as_json_and_as_csv(home):
    told = run("usage", "--since=7d").output
    assert "Nothing is written down" in told and "last 7d" in told and "every 10 s" in told
    run("create", "--name", "anna, the first", "--tokens-per-day", "1000", "--concurrency", "2")
    assert (listed()[0]["tokens_per_day"], listed()[0]["concurrency"]) == (1000, 2)
    store = KeyStore.open(home)
    key_id = store.list_keys()[0].key.key_id
    for days_ago in (40, 1):
        store.add_usage({key_id: KeyUsage(2, 30, 400, None, 1)}, time.time() - days_ago * 86400)
    store.close()
    (row,) = json.loads(run("usage", "--json").stdout)
    assert (row["name"], row["requests"], row["answer_tokens"]) == ("anna, the first", 2, 400)
    assert row["refused"] == listed()[0]["refused"] - 1 == 1
    assert row["day"] in run("usage").stdout
    told = list(csv.DictReader(run("usage", "--csv", "--since", "365d").stdout.splitlines()))
    assert [one["prompt_tokens"] for one in told] == ["30", "30"]
    assert told[1] == {name: str(value) for name, value in row.items()}


def test_revoking(tmp_path):
    (tmp_path / "other").mkdir()
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
        (("rotate", "nobody"), "no usable key 'nobody'"),
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
    with pytest.raises(UserError, match=f"There is no cluster in {elsewhere}"):
        run("create", "--data-dir", str(elsewhere))
    assert not elsewhere.exists()
