"""A disk that fills or fails, and a host without memory: a sentence with the figure, and on."""

import errno
import os
import queue
import subprocess
from types import SimpleNamespace

import pytest

from molink.engine.memory import leaving_blocks
from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.stage.cache import host_blocks as host_module
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.tiers import FILE, HOST
from tests.engine.memory.test_leaving_blocks import pool_of

BLOCKS = 600


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.name != "posix" or os.geteuid() or subprocess.run(command, check=False).returncode:
        pytest.skip("only root mounts a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Trial:
    """A store, the pool beside it, and its answers."""

    def __init__(self, folder, ram_blocks, disk_blocks):
        self.pool = pool_of(BLOCKS, 1)
        self.packed, self.answers = PackedBlocks((self.pool,)), queue.Queue()
        self.leaving = []
        size = self.packed.block_bytes
        room = CacheRoom(ram_blocks * size, disk_blocks * (size + 16), str(folder))
        self.store = CacheStore(room, size, self.answers.put)
        part = SimpleNamespace(
            kv=KvBlocks(BLOCKS),
            kv_memory=self.pool,
            moving=MovingBlocks(),
        )
        self.store.start(BlocksOfParts([part]), BLOCKS)

    def put(self, tier, numbers):
        leaving = LeavingBlocks(self.packed, tuple(numbers), [list(numbers)])
        self.store.put(tier, leaving.numbers, leaving)
        self.leaving.append(leaving)
        return leaving

    def back(self, numbers):
        """How many come back, as they were."""
        before_BW = self.packed.take([numbers])
        for leaving in self.leaving:
            leaving.vacate(0, numbers, 10**9)
        self.pool.wipe(numbers)
        arriving = ArrivingBlocks(tuple(numbers), list(numbers))
        self.store.fetch(0, ArrivingTogether(self.packed, [arriving]))
        answer = self.answers.get(timeout=30)
        arriving.wait()
        found = list(numbers)[: answer.blocks]
        assert (self.packed.take([found]) == before_BW[: answer.blocks]).all()
        return answer.blocks


def test_a_disk_that_fills_keeps_what_it_has_taken(small_disk, caplog):
    trial = Trial(small_disk, 0, BLOCKS)
    trial.put(FILE, range(BLOCKS))
    room = 2**20 // (trial.packed.block_bytes + 16)
    assert 0 < room < BLOCKS
    assert room - 8 <= trial.back(range(BLOCKS)) <= room
    assert "grows no more" in caplog.text and "with 1 MB in it" in caplog.text
    trial.put(FILE, range(5))
    assert trial.back(range(5)) == 5, "what it has taken is used again"


class Failing:
    """A file whose disk answers EIO from some time on."""

    def __init__(self, file, *names):
        self.file, self.names = file, names

    def __getattr__(self, name):
        if name in self.names:
            raise OSError(errno.EIO, "Input/output error")
        return getattr(self.file, name)


@pytest.mark.parametrize(
    ("names", "came", "told"),
    [
        (("write",), 0, "grows no more"),
        (("read",), 0, "a block could not be read"),
        (("truncate",), 3, "something could not be done"),
    ],
)
def test_a_disk_that_fails_holds_up_nobody(tmp_path, caplog, names, came, told):
    """Blocks are lost, the thread goes on, and host memory serves as before."""
    trial = Trial(tmp_path, 4, BLOCKS)
    trial.store._blocks.file._file = Failing(trial.store._blocks.file._file, *names)
    trial.put(FILE, range(3))
    assert trial.back(range(3)) == came
    trial.store.clear(trial.packed.block_bytes)
    trial.put(HOST, range(3))
    assert trial.back(range(3)) == 3
    assert told in caplog.text and "Input/output error" in caplog.text


def test_a_disk_that_keeps_nothing_is_told_when_the_stage_loads(tmp_path, monkeypatch, caplog):
    def fails(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    trial = Trial(tmp_path, 4, BLOCKS)
    assert f"the disk of {tmp_path} does not keep" in caplog.text
    trial.put(HOST, range(3))
    assert trial.back(range(3)) == 3


@pytest.mark.parametrize("tier", [HOST, FILE])
def test_a_host_without_memory_loses_blocks_and_goes_on(tmp_path, monkeypatch, caplog, tier):
    trial = Trial(tmp_path, BLOCKS, BLOCKS)
    gives, given = leaving_blocks.host_blocks, []

    def few(blocks, block_bytes, kind):
        if tier == FILE or len(given) == 1:
            raise MemoryError
        given.append(blocks)
        return gives(blocks, block_bytes, kind)

    monkeypatch.setattr(leaving_blocks, "host_blocks", few)
    monkeypatch.setattr(host_module, "CHUNK_BYTES", 100 * trial.packed.block_bytes)
    leaving = trial.put(tier, range(150))
    assert trial.back(range(150)) == (100 if tier == HOST else 0)
    assert leaving.is_gone, "nobody waits for what was lost"
    assert "no memory left" in caplog.text and " MB." in caplog.text
    monkeypatch.undo()
    trial.store.shed()
    trial.put(tier, range(150))
    assert trial.back(range(150)) == 150
