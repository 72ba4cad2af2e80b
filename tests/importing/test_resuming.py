"""An import that ended early goes on where it was, and is never half a checkpoint."""

import errno
import fcntl
import json
import os

import pytest

from molink.checkpoint.safetensors_header import read_header
from molink.errors import UserError
from molink.importing import checkpoint_folder
from molink.importing.checkpoint_folder import one_tensor, write_checkpoint

SIZE = 100


class Source:
    """Five tensors, each in a file of its own; tells which were made, fails where it is told."""

    def __init__(self, failing=None, error=None):
        self.failing, self.error, self.made = failing, error, []

    def tensors(self):
        return [
            one_tensor(f"t{at}", "U8", (SIZE,), SIZE, lambda at=at: self.pieces(at))
            for at in range(5)
        ]

    def pieces(self, at):
        yield bytes([at]) * (SIZE // 2)
        if at == self.failing:
            raise self.error
        self.made.append(at)
        yield bytes([at]) * (SIZE // 2)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(checkpoint_folder, "FILE_BYTES_MAX", SIZE)


def write(folder, source, identity="same", small=None):
    seen = []
    write_checkpoint(
        folder,
        source.tensors(),
        small or {"config.json": b"{}"},
        lambda done, total: seen.append((done, total)),
        identity,
    )
    return seen


def check_whole(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == 5
    for name, file in index["weight_map"].items():
        (tensor,) = read_header(folder / file).tensors
        data = (folder / file).read_bytes()[tensor.start : tensor.stop]
        assert (tensor.name, data) == (name, bytes([int(name[1])]) * SIZE)
    kept = {"config.json", "model.safetensors.index.json", *index["weight_map"].values()}
    assert {path.name for path in folder.iterdir()} == kept
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def interrupted(folder, error=None, failing=3):
    error = error or KeyboardInterrupt()
    with pytest.raises((UserError, type(error))) as raised:
        write(folder, Source(failing, error))
    assert not folder.exists()
    return str(raised.value)


def test_what_is_finished_is_not_made_again(tmp_path):
    interrupted(tmp_path / "out")
    again = Source()
    seen = write(tmp_path / "out", again)
    assert again.made == [3, 4]
    assert seen[0] == (SIZE, 5 * SIZE) and seen[-1] == (5 * SIZE, 5 * SIZE)
    check_whole(tmp_path / "out")


def test_a_full_disk_loses_nothing_and_takes_one_sentence(tmp_path):
    said = interrupted(tmp_path / "out", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert "full" in said and "same command again" in said and "\n" not in said
    left = {path.name for path in (tmp_path / ".out.importing").iterdir()}
    assert not any(name.endswith(".part") for name in left), "its room is given back"
    again = Source()
    write(tmp_path / "out", again)
    assert again.made == [3, 4]
    check_whole(tmp_path / "out")


@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda d: d[:-1] + b"!", lambda d: d + b"!"])
def test_a_file_that_is_not_what_was_written_is_made_again(tmp_path, spoil):
    interrupted(tmp_path / "out")
    path = tmp_path / ".out.importing" / "model-00002-of-00005.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    again = Source()
    write(tmp_path / "out", again)
    assert again.made == [1, 3, 4]
    check_whole(tmp_path / "out")


def test_what_a_killed_import_left_half_written_does_not_count(tmp_path):
    interrupted(tmp_path / "out")
    work = tmp_path / ".out.importing"
    (work / "model-00004-of-00005.safetensors.part").write_bytes(b"half")
    (work / "model-00005-of-00005.safetensors").write_bytes(b"renamed, and not noted")
    again = Source()
    write(tmp_path / "out", again)
    assert again.made == [3, 4]
    check_whole(tmp_path / "out")


@pytest.mark.parametrize(
    "other", [{"identity": "changed"}, {"small": {"config.json": b"{ }"}}, {"notes": "spoilt"}]
)
def test_another_source_or_spoilt_notes_begin_anew(tmp_path, other):
    interrupted(tmp_path / "out")
    if other.pop("notes", None):
        (tmp_path / ".out.importing" / "finished.json").write_text("{")
    again = Source()
    write(tmp_path / "out", again, **other)
    assert again.made == [0, 1, 2, 3, 4]
    check_whole(tmp_path / "out")


def test_nothing_is_left_where_no_file_was_finished(tmp_path):
    interrupted(tmp_path / "out", failing=0)
    assert not list(tmp_path.iterdir())


def test_two_imports_at_once_are_refused(tmp_path):
    interrupted(tmp_path / "out")
    with (tmp_path / ".out.importing" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="Another import"):
            write(tmp_path / "out", Source())
    assert (tmp_path / ".out.importing" / "finished.json").exists()
    write(tmp_path / "out", Source())
    check_whole(tmp_path / "out")
