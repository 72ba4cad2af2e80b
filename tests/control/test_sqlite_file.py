"""Each SQLite file has a version: an older one is brought up to date, a newer one left alone."""

import sqlite3

import pytest

from molink.api.keys.store import MIGRATIONS as KEYS
from molink.api.keys.store import KeyStore
from molink.control.registry.database import MIGRATIONS as REGISTRY
from molink.control.registry.registry import Registry
from molink.control.sqlite_file import open_database
from molink.coordinator.reports.ledger import MIGRATIONS as LEDGER
from molink.coordinator.reports.ledger import Ledger
from molink.errors import UserError
from molink.serving.answers.live_state import MIGRATIONS as LIVE
from molink.serving.answers.live_state import LiveState

FILES = {
    "registry.db": (REGISTRY, Registry.open),
    "keys.sqlite": (KEYS, KeyStore.open),
    "ledger.sqlite": (LEDGER, Ledger.open),
    "live.sqlite": (LIVE, lambda folder: LiveState.open(folder, "m", 0.0)),
}


def version_of(path):
    database = sqlite3.connect(path)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    return version


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_any_older_version_is_brought_up_to_date(tmp_path, name):
    migrations, opened = FILES[name]
    for steps in range(len(migrations)):
        folder = tmp_path / str(steps)
        open_database(folder / name, migrations[:steps]).close()
        opened(folder).close()
        assert version_of(folder / name) == len(migrations)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_newer_version_is_refused_in_a_sentence_and_left_as_it_is(tmp_path, name):
    migrations, opened = FILES[name]
    open_database(tmp_path / name, (*migrations, "CREATE TABLE newer (a)")).close()
    with pytest.raises(UserError) as refused:
        opened(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / name} was written by a newer MoLink: update this one."
    )
    assert version_of(tmp_path / name) == len(migrations) + 1


def damaged(path, how):
    whole = path.read_bytes()
    spoilt = {"cut": whole[: len(whole) // 2], "emptied": b"", "garbage": b"no database" * 900}
    path.write_bytes(spoilt[how])
    for part in ("-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["cut", "emptied", "garbage"])
@pytest.mark.parametrize("name", ["ledger.sqlite", "live.sqlite"])
def test_a_damaged_file_that_may_be_lost_is_put_aside(tmp_path, name, how, caplog):
    _, opened = FILES[name]
    opened(tmp_path).close()
    damaged(tmp_path / name, how)
    opened(tmp_path).close()
    aside = [path for path in tmp_path.iterdir() if ".damaged-" in path.name]
    assert len(aside) == (0 if how == "emptied" else 1) == len(caplog.records)


@pytest.mark.parametrize("how", ["cut", "emptied", "garbage"])
@pytest.mark.parametrize("name", ["registry.db", "keys.sqlite"])
def test_a_damaged_file_that_may_not_be_lost_is_never_begun_anew(tmp_path, name, how):
    """Whoever was a member would be forgotten, or everybody let in, without a word."""
    _, opened = FILES[name]
    opened(tmp_path).close()
    damaged(tmp_path / name, how)
    left = (tmp_path / name).read_bytes()
    with pytest.raises(
        UserError, match=rf"{name} is damaged \(.*\): put .*{name}\.copy in"
    ) as told:
        opened(tmp_path)
    assert f"remove {name}-wal and {name}-shm" in str(told.value)
    assert "--data-dir" not in str(told.value) and (tmp_path / name).read_bytes() == left
    copy = tmp_path / f"{name}.copy"
    assert copy.stat().st_mode & 0o777 == 0o600
    copy.replace(tmp_path / name)
    opened(tmp_path).close()


def test_a_full_disk_keeps_no_copy_and_starts(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    Registry.open(tmp_path).close()
    assert "no copy of" in caplog.text
