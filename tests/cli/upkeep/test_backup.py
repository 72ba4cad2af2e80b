"""`molink backup` and `molink restore`: a cluster goes to another folder, whole or not at all."""

import errno
import io
import json
import os
import sqlite3
import tarfile
import time
from contextlib import closing

import pytest
from click.testing import CliRunner

from molink.api.keys.store import KeyStore, KeyUsage, digest_of
from molink.cli.main import cli
from molink.config.data_dir import only_one
from molink.control.backup import FORMAT, MANIFEST
from molink.control.registry.registry import Registry
from molink.coordinator.start import LOCK_FILE
from molink.errors import UserError
from tests.control.registry.joining import NOW, URL, key, make, request

SECRET_FILE = "registry.db"


def run(*words: object):
    result = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def refused(*words: object) -> str:
    with pytest.raises(UserError) as error:
        CliRunner().invoke(
            cli, [str(word) for word in words], catch_exceptions=False, standalone_mode=False
        )
    return str(error.value)


@pytest.fixture
def cluster(tmp_path):
    """A folder with two members, an invite, a key that was used, and a certificate."""
    folder = tmp_path / "first"
    registry = Registry.open(folder)
    registry.url = URL
    invite = make(registry)
    for number, name in ((1, "anna"), (2, "ben")):
        registry.admit(key(number), request(invite, name), NOW)
    registry.next_revision()
    store = KeyStore.open(folder)
    used, secret = store.create(time.time(), name="carl")
    store.add_usage({used.key_id: KeyUsage(3, 40, 50)}, time.time())
    (folder / "tls.pem").write_text("a certificate")
    yield folder, secret
    registry.close()
    store.close()


@pytest.fixture
def file(cluster, tmp_path):
    """A backup of it, made while it is open, with what no disk has yet."""
    made = tmp_path / "cluster.backup"
    run("backup", made, "--data-dir", cluster[0])
    return made


def test_a_backup_holds_all_that_cannot_be_made_anew(cluster, file, tmp_path):
    assert file.stat().st_mode & 0o077 == 0
    folder = tmp_path / "second"
    said = run("restore", file, "--data-dir", folder).stdout
    assert "2 PCs" in said and URL in said
    first, second = Registry.open(cluster[0]), Registry.open(folder)
    assert second.list_nodes() == first.list_nodes()
    assert second.list_invites() == first.list_invites()
    assert second.coordinator.secret == first.coordinator.secret
    store = KeyStore.open(folder)
    assert digest_of(cluster[1]) in store.by_digest()
    assert store.list_keys()[0].usage.answer_tokens == 50
    assert (folder / "tls.pem").read_text() == "a certificate"
    assert all(not one.stat().st_mode & 0o077 for one in folder.iterdir() if one.name != LOCK_FILE)
    for one in (first, second, store):
        one.close()


def test_nodes_heed_what_a_restored_coordinator_assigns(cluster, file, tmp_path):
    """Whatever the first one has assigned since: theirs is above all that nodes have seen."""
    first = Registry.open(cluster[0])
    since = max(first.next_revision() for _ in range(5000))
    run("restore", file, "--data-dir", tmp_path / "second")
    second = Registry.open(tmp_path / "second")
    assert since < second.next_revision() < 10**12, "names of links hold twelve digits"
    first.close()
    second.close()


def test_what_was_revoked_since_is_said_to_be_valid_again(cluster, file, tmp_path):
    with closing(KeyStore.open(cluster[0])) as store:
        store.revoke("carl", time.time())
    said = run("restore", file, "--data-dir", tmp_path / "second").stdout
    with closing(KeyStore.open(tmp_path / "second")) as store:
        assert digest_of(cluster[1]) in store.by_digest()
    for command in ("molink node remove", "molink key revoke", "molink invite revoke"):
        assert command in said


def test_a_member_joins_the_restored_cluster_without_an_invite(file, tmp_path):
    run("restore", file, "--data-dir", tmp_path / "second")
    registry = Registry.open(tmp_path / "second")
    assert not registry.admit(key(1), request(None, "anna"), NOW).is_new
    registry.close()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.9, 0.97])
def test_a_file_that_was_cut_short_restores_nothing(file, tmp_path, share):
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    folder = tmp_path / "second"
    assert "cut short or altered" in refused("restore", file, "--data-dir", folder)
    assert not folder.exists()


def test_a_file_that_was_altered_restores_nothing(file, tmp_path):
    with tarfile.open(file) as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive.getmembers()}
    members[SECRET_FILE] = members[SECRET_FILE].replace(b"anna", b"ANNA")
    pack(file, members)
    assert "cut short or altered" in refused("restore", file, "--data-dir", tmp_path / "second")


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b" + bytes(50)])
def test_what_is_no_backup_is_one_sentence(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert f"{path} is no backup" in refused("restore", path, "--data-dir", tmp_path / "second")
    missing = refused("restore", tmp_path / "none", "--data-dir", tmp_path / "second")
    assert "cannot be read" in missing


@pytest.mark.parametrize("what", ["format", "steps", "file"])
def test_a_backup_of_a_newer_molink_is_refused(file, tmp_path, what):
    with tarfile.open(file) as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive.getmembers()}
    manifest = json.loads(members[MANIFEST])
    if what == "format":
        manifest["format"] = FORMAT + 1
    elif what == "steps":
        manifest["files"][SECRET_FILE]["steps"] += 1
    else:
        manifest["files"]["teams.sqlite"] = manifest["files"][SECRET_FILE]
    members[MANIFEST] = json.dumps(manifest).encode()
    pack(file, members)
    assert "newer MoLink" in refused("restore", file, "--data-dir", tmp_path / "second")


def test_a_folder_with_a_cluster_or_in_use_is_left_alone(cluster, file, tmp_path):
    before = (cluster[0] / SECRET_FILE).read_bytes()
    assert "holds a cluster already" in refused("restore", file, "--data-dir", cluster[0])
    assert (cluster[0] / SECRET_FILE).read_bytes() == before
    with only_one("A coordinator", tmp_path / "second" / LOCK_FILE):
        assert "runs with" in refused("restore", file, "--data-dir", tmp_path / "second")


@pytest.mark.parametrize("found", ["registry.db-wal", "keys.sqlite-wal", "keys.sqlite", "tls.pem"])
def test_nothing_of_another_cluster_is_overwritten_or_mixed_in(file, tmp_path, found):
    """As of `molink serve`, or of a coordinator that was killed and whose members were lost."""
    folder = tmp_path / "second"
    folder.mkdir()
    (folder / found).write_bytes(b"of another one")
    assert f"holds {found} already" in refused("restore", file, "--data-dir", folder)
    assert (folder / found).read_bytes() == b"of another one"
    assert not (folder / SECRET_FILE).exists()


def test_an_interrupted_restore_is_begun_anew(file, tmp_path):
    folder = tmp_path / "second"
    run("restore", file, "--data-dir", folder)
    left = (folder / "keys.sqlite").read_bytes()
    (folder / SECRET_FILE).unlink()
    run("restore", file, "--data-dir", folder)
    assert (folder / "keys.sqlite").read_bytes() == left


def test_no_file_is_overwritten_and_no_folder_made(cluster, file, tmp_path):
    before = file.read_bytes()
    assert "exists already" in refused("backup", file, "--data-dir", cluster[0])
    assert file.read_bytes() == before
    assert "no cluster" in refused("backup", tmp_path / "b", "--data-dir", tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_a_stick_without_hard_links_takes_a_backup(cluster, tmp_path, monkeypatch):
    def refused_link(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused_link)
    made = tmp_path / "stick" / "usb.backup"
    made.parent.mkdir()
    run("backup", made, "--data-dir", cluster[0])
    assert list(made.parent.iterdir()) == [made]
    run("restore", made, "--data-dir", tmp_path / "second")


def test_a_backup_into_no_folder_is_not_said_to_lack_room(cluster, tmp_path):
    said = refused("backup", tmp_path / "none" / "b", "--data-dir", cluster[0])
    assert "write it somewhere else" in said


def test_a_damaged_database_is_not_backed_up(cluster, tmp_path):
    with sqlite3.connect(cluster[0] / "ledger.sqlite") as made:
        made.execute("CREATE TABLE contribution (node_id TEXT)")
    damaged = bytearray((cluster[0] / "ledger.sqlite").read_bytes())
    damaged[:16] = bytes(16)
    (cluster[0] / "ledger.sqlite").write_bytes(damaged)
    said = refused("backup", tmp_path / "b", "--data-dir", cluster[0])
    assert "ledger.sqlite" in said and "nothing was backed up" in said
    assert not (tmp_path / "b").exists()


def pack(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
