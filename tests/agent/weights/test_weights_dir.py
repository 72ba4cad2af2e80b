"""A disk that is full, or lent only in part."""

import errno
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.errors import WeightsError
from molink_agent.weights import ensure_weights, weights_dir
from molink_agent.weights.part_file import PartFile
from molink_scheduler.units import GB
from tests.agent.weights.stored import needed_of, tensors_in
from tests.agent.weights.weights_server import BLOCK, LAYERS, QUICK, write_model

SINGLE = "model.safetensors"
ALL = range(LAYERS)


def used_bytes(directory) -> int:
    files = (path for path in directory.rglob("*") if not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.is_file())


async def test_a_disk_that_is_too_small_is_known_before_anything_travels(serve, home, monkeypatch):
    server = await serve()
    limits = replace(QUICK, disk_reserve_bytes=3 * GB)
    monkeypatch.setattr(weights_dir.shutil, "disk_usage", lambda _: SimpleNamespace(free=GB))
    with pytest.raises(WeightsError, match=r"is 2\.1 GB short of layers 0 to 5 of tiny/model"):
        await ensure_weights(server.source, ALL, home, limits)
    assert server.asked == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_that_fills_up_keeps_what_it_has(serve, home, monkeypatch, code):
    server = await serve()
    whole, left = PartFile.take, 9

    def take(self, block, data):
        nonlocal left
        if block in self.wanted and (left := left - 1) < 0:
            with self.partial.open("ab") as file:
                file.write(data[:10])
            raise OSError(code, os.strerror(code), str(self.partial))
        return whole(self, block, data)

    monkeypatch.setattr(PartFile, "take", take)
    with pytest.raises(WeightsError, match=r"0\.1 GB short .*what has come is kept"):
        await ensure_weights(server.source, ALL, home, QUICK)
    monkeypatch.undo()
    server.asked.clear()
    found = await ensure_weights(server.source, ALL, home, QUICK)
    assert server.bytes_asked() < (server.model / SINGLE).stat().st_size - 4 * BLOCK
    assert tensors_in(found) == needed_of(server.model, ALL, LAYERS, tied=False)


async def test_a_disk_that_cannot_be_written(serve, home, monkeypatch):
    server = await serve()

    def take(self, block, data):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.partial))

    monkeypatch.setattr(PartFile, "take", take)
    with pytest.raises(WeightsError, match=r"config\.json\.partial cannot be written"):
        await ensure_weights(server.source, ALL, home, QUICK)


async def test_a_place_that_is_no_directory(serve, home):
    server = await serve()
    home.write_text("a file")
    with pytest.raises(WeightsError, match="see to its owner and disk"):
        await ensure_weights(server.source, ALL, home, QUICK)


async def test_the_model_used_longest_ago_goes_first(serve, home, tmp_path):
    servers = [await serve(write_model(tmp_path / str(seed), seed=seed)) for seed in range(3)]
    views = [await ensure_weights(one.source, ALL, home, QUICK) for one in servers[:2]]
    for age, view in enumerate(reversed(views)):
        os.utime(view, (1e9 - age, 1e9 - age))
    cap = used_bytes(home) + 100
    capped = replace(QUICK, disk_bytes_max=cap)
    views.append(await ensure_weights(servers[2].source, ALL, home, capped))
    assert [view.exists() for view in views] == [False, True, True]
    assert not views[0].parent.exists()
    assert used_bytes(home) <= cap + BLOCK * 3  # journals of new parts


async def test_weights_that_a_stage_uses_are_never_removed(serve, home, tmp_path):
    servers = [await serve(write_model(tmp_path / str(seed), seed=seed)) for seed in range(3)]
    views = [await ensure_weights(one.source, ALL, home, QUICK) for one in servers[:2]]
    for age, view in enumerate(reversed(views)):
        os.utime(view, (1e9 - age, 1e9 - age))
    limits = replace(QUICK, disk_bytes_max=used_bytes(home) + 100, keep=frozenset(views[:1]))
    await ensure_weights(servers[2].source, ALL, home, limits)
    assert [view.exists() for view in views] == [True, False]
    limits = replace(limits, keep=frozenset([views[0], home / "elsewhere"]), disk_bytes_max=9_000)
    with pytest.raises(WeightsError, match=r"disk cap is 0\.1 GB too small for layers 0 to 5"):
        await ensure_weights(servers[1].source, ALL, home, limits)
    assert views[0].exists()


async def test_layers_that_were_taken_away_go_before_whole_models(serve, home, tmp_path):
    servers = [await serve(write_model(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    other = await ensure_weights(servers[1].source, range(1), home, QUICK)
    old = await ensure_weights(servers[0].source, range(3), home, QUICK)
    os.utime(old, (1e9, 1e9))
    cap = used_bytes(home) + 5_000
    limits = replace(QUICK, disk_bytes_max=cap)
    new = await ensure_weights(servers[0].source, range(2, 5), home, limits)
    assert (other.exists(), old.exists()) == (True, False)
    assert tensors_in(new) == needed_of(servers[0].model, range(2, 5), LAYERS, tied=False)
    assert {path.name for path in new.parent.glob("parts/layer-*.safetensors")} == {
        f"layer-{layer:05d}.{SINGLE}" for layer in (2, 3, 4)
    }
