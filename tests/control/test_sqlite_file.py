"""Each SQLite file has a version: an older one is brought up to date, a newer one left alone."""

import sqlite3

import pytest

from molink.control.api_keys.store import MIGRATIONS as KEYS
from molink.control.api_keys.store import KeyStore
from molink.control.registry.database import MIGRATIONS as REGISTRY
from molink.control.registry.registry import Registry
from molink.control.sqlite_file import open_database
from molink.coordinator.requests.ledger import MIGRATIONS as LEDGER
from molink.coordinator.requests.ledger import Ledger
from molink.errors import UserError
from molink.serving.live_state import MIGRATIONS as LIVE
from molink.serving.live_state import LiveState

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
