"""What the registry's file outlives: writers beside it, full disks, older versions, restarts."""

import sqlite3
import subprocess
import sys
from contextlib import contextmanager

import pytest

from molink.control.registry.database import MIGRATIONS
from molink.control.registry.registry import Registry
from molink.control.sqlite_file import open_database
from molink.errors import ControlError, UserError
from tests.control.registry.joining import NOW, key, make, request


@contextmanager
def held(tmp_path):
    """Another process is in the middle of a transaction."""
    other = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


def test_reading_waits_for_no_writer(registry, tmp_path):
    invite = make(registry)
    node = registry.admit(key(1), request(invite), NOW).node
    revision, pair = registry.next_revision(), registry.coordinator
    with held(tmp_path):
        assert registry.member(node.node_id) == node
        assert registry.pc_of_token(node.weights_token) == node.node_id
        assert registry.list_nodes() == [node] and len(registry.list_invites()) == 1
        assert registry.changed() and registry.url and registry.coordinator == pair
        assert registry.next_revision() == revision + 1
        registry.url = registry.url


def test_a_registry_in_use_is_one_sentence_and_soon(registry, tmp_path, monkeypatch):
    monkeypatch.setattr("molink.control.registry.registry.LOOP_BUSY_S", 0.0)
    with held(tmp_path), pytest.raises(ControlError, match="cannot be used"):
        registry.next_revision()
    assert registry.next_revision() == 1


def test_a_full_disk_is_named_and_stands_in_nobody_s_way_afterwards(registry):
    invite = make(registry)
    registry._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(ControlError, match="full"):
        for number in range(1, 300):
            registry.set_setting(f"{number}", "x" * 1000)
    assert len(registry.list_invites()) == 1
    registry._connection.execute("PRAGMA max_page_count = 1000000")
    assert registry.admit(key(1), request(invite), NOW).is_new


FULL = """
import resource, sys
from pathlib import Path
from molink.control.registry.registry import Registry
from molink.errors import UserError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    Registry.open(Path(sys.argv[1]))
except UserError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("is_new", [True, False])
def test_a_start_on_a_full_disk_says_what_to_do(tmp_path, is_new):
    if not is_new:
        Registry.open(tmp_path).close()
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True
    )
    assert "whether its disk is full" in ended.stderr and "Traceback" not in ended.stderr


def test_a_change_is_noticed_once(registry, tmp_path):
    make(registry)
    assert registry.changed()
    assert not registry.changed()
    command = Registry.open(tmp_path, make=False)
    command.list_invites()
    assert not registry.changed()
    command.make_invite(1.0, 1, "", NOW)
    assert registry.changed()
    assert not registry.changed()
    command.close()


def test_a_folder_without_a_registry_is_told_and_left_empty(tmp_path):
    with pytest.raises(UserError, match="run molink up first"):
        Registry.open(tmp_path, make=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_none_or_of_a_newer_version_is_refused(tmp_path):
    (tmp_path / "registry.db").write_bytes(b"no database" * 100)
    with pytest.raises(UserError, match="is damaged"):
        Registry.open(tmp_path)
    (tmp_path / "registry.db").unlink()
    open_database(tmp_path / "registry.db", (*MIGRATIONS, "CREATE TABLE more (a)")).close()
    with pytest.raises(UserError, match="newer MoLink"):
        Registry.open(tmp_path)


def test_an_older_file_is_brought_up_to_date_and_keeps_its_rows(tmp_path):
    path = tmp_path / "file.db"
    first = "CREATE TABLE one (a); INSERT INTO one VALUES (7)"
    open_database(path, (first,)).close()
    database = open_database(path, (first, "ALTER TABLE one ADD COLUMN b DEFAULT 8"))
    assert tuple(database.execute("SELECT * FROM one").fetchone()) == (7, 8)
    database.close()


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "file.db"
    with pytest.raises(UserError, match="cannot be opened"):
        open_database(path, ("CREATE TABLE one (a); NONSENSE",))
    open_database(path, ("CREATE TABLE one (a)",)).close()


def test_a_registry_that_breaks_while_in_use_is_one_sentence(registry):
    registry._connection.execute("DROP TABLE nodes")
    with pytest.raises(ControlError, match="cannot be used"):
        registry.list_nodes()
