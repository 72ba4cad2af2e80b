"""Files that a node keeps for its stage's cached KV."""

from pathlib import Path

import pytest

from molink.node import kept_cache as kept_module
from molink.node.kept_cache import KeptCache
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import LoadStage, StageWork, decode_line, encode_line

LOAD = LoadStage("/model", StageWork((0, 2), "cpu", "float32"), "127.0.0.1")


def load(room):
    return LoadStage(LOAD.model, LOAD.work, LOAD.address, cache_room=room)


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux has it")


@needs_proc
def test_each_process_finds_what_the_one_before_has_written(tmp_path):
    kept, room = KeptCache(), CacheRoom(0, 1000, str(tmp_path / "kv"))
    first, second = (decode_line(encode_line(kept.lent(load(room)))) for _ in range(2))
    Path(first.cache_room.kept.blocks).write_bytes(b"sealed")
    assert Path(second.cache_room.kept.blocks).read_bytes() == b"sealed"
    assert Path(second.cache_room.kept.index).read_bytes() == b""
    assert list((tmp_path / "kv").iterdir()) == [], "nobody finds them by a name"
    assert (first.cache_room.kept.key, first.cache_room.kept.start) == (
        second.cache_room.kept.key,
        second.cache_room.kept.start - 1,
    )
    assert first.cache_room.kept.key not in repr(first)


@needs_proc
def test_what_is_forgotten_is_gone(tmp_path):
    kept, room = KeptCache(), CacheRoom(0, 1000, str(tmp_path))
    before = kept.lent(load(room)).cache_room.kept
    Path(before.blocks).write_bytes(b"sealed")
    kept.forget()
    after = kept.lent(load(room)).cache_room.kept
    assert Path(after.blocks).read_bytes() == b"" and after.key != before.key
    kept.forget()
    assert not Path(after.blocks).exists()


@pytest.mark.parametrize("room", [None, CacheRoom(None, 0)])
def test_without_room_on_the_disk_nothing_is_kept(room):
    assert KeptCache().lent(load(room)) == load(room)


def test_where_no_file_can_be_made_the_stage_is_told_of_none(tmp_path, monkeypatch):
    room = CacheRoom(0, 1000, str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    assert KeptCache().lent(load(room)) == load(room)
    monkeypatch.setattr(kept_module, "Path", lambda name: tmp_path / "nowhere")
    assert KeptCache().lent(load(CacheRoom(0, 1000, str(tmp_path)))).cache_room.kept is None
