"""From the hub, played by a directory in the layout of its client's cache."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from molink.checkpoint import checkpoint
from molink.errors import CheckpointError, WeightsError
from molink_agent.weights import HubSource, ensure_weights
from tests.agent.weights.stored import needed_of, tensors_in
from tests.agent.weights.weights_server import LAYERS, QUICK, write_model

SOURCE = HubSource("owner/model")


class Hub:
    """Keeps blobs by checksum, and links to them under a commit, as the client does."""

    def __init__(self, remote: Path) -> None:
        self.remote = remote
        self.fetched: list[str] = []
        self.damaged = 0
        """Of the next weight files fetched."""

    def snapshot_download(
        self, hub_id, *, allow_patterns, local_files_only, cache_dir, dry_run=False
    ):
        names = {path.relative_to(self.remote) for path in self.remote.rglob("*")}
        found = [one for one in sorted(names) if any(one.match(each) for each in allow_patterns)]
        if dry_run:
            sizes = ((one, (self.remote / one).stat().st_size) for one in found)
            return [SimpleNamespace(filename=str(one), file_size=size) for one, size in sizes]
        for one in found:
            self._cache(Path(cache_dir), str(one), (self.remote / one).read_bytes())
        return str(Path(cache_dir) / "snapshots" / "c0ffee")

    def hf_hub_download(
        self, hub_id, name, *, cache_dir, dry_run=False, force_download=False, tqdm_class=None, **_
    ):
        data = (self.remote / name).read_bytes()
        link = Path(cache_dir) / "snapshots" / "c0ffee" / name
        if dry_run:
            return SimpleNamespace(file_size=len(data), is_cached=link.exists())
        if force_download or not link.exists():
            self.fetched.append(name)
            with tqdm_class(total=len(data)) as bar:
                bar.update(len(data))
            spoilt = bytes([data[0] ^ 1]) + data[1:] if self.damaged else data
            self.damaged = max(0, self.damaged - 1)
            self._cache(Path(cache_dir), name, data, spoilt)
        return str(link)

    def _cache(self, cache: Path, name: str, data: bytes, stored: bytes | None = None) -> None:
        blob = cache / "blobs" / hashlib.sha256(data).hexdigest()
        link = cache / "snapshots" / "c0ffee" / name
        for one in (blob, link):
            one.parent.mkdir(parents=True, exist_ok=True)
            one.unlink(missing_ok=True)
        blob.write_bytes(data if stored is None else stored)
        link.symlink_to(blob)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    made = Hub(tmp_path / "remote")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", made.hf_hub_download)
    monkeypatch.setattr(checkpoint, "_hub_answers", lambda: True)
    return made


@pytest.mark.parametrize("files", [1, 5])
async def test_whole_files_of_its_layers_come_and_only_its_tensors_are_named(hub, home, files):
    write_model(hub.remote, files=files)
    told = []
    found = await ensure_weights(SOURCE, range(2, 4), home, QUICK, lambda *one: told.append(one))
    needed = needed_of(hub.remote, range(2, 4), LAYERS, tied=False)
    held = tensors_in(found)
    assert {name: held[name] for name in needed} == needed
    assert len(hub.fetched) == (1 if files == 1 else 2)
    assert (told[0][0].fraction, told[-1][0].fraction) == (0.0, 1.0)
    hub.fetched.clear()
    assert await ensure_weights(SOURCE, range(2, 4), home, QUICK) == found
    assert hub.fetched == []


async def test_what_is_beside_the_weights_has_a_bound(hub, home):
    """A repository may hold anything, and a coordinator may name any."""
    write_model(hub.remote)
    (hub.remote / "examples").mkdir()
    (hub.remote / "examples" / "padding.json").write_bytes(b" " * 300_000)
    await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    assert not list(home.rglob("padding.json")), "what is not the model's is not fetched"
    (hub.remote / "padding.json").write_bytes(b" " * 300_000)
    with pytest.raises(CheckpointError, match="beside its weights; 256 and 0 MiB are the most"):
        await ensure_weights(
            SOURCE, range(LAYERS), home / "small", replace(QUICK, disk_bytes_max=200_000)
        )
    assert not list((home / "small").rglob("*.json"))


async def test_verifying_what_is_there_is_progress_too(hub, home):
    write_model(hub.remote, files=5)
    await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    told = []
    await ensure_weights(SOURCE, range(LAYERS), home, QUICK, lambda one: told.append(one.fraction))
    assert told == sorted(told)
    assert told[0] < 0.95 and len(set(told)) >= 5


async def test_a_file_that_came_damaged_is_fetched_again(hub, home):
    write_model(hub.remote)
    hub.damaged = 1
    found = await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    assert len(hub.fetched) == 2
    assert tensors_in(found) == tensors_in(hub.remote)


async def test_a_file_that_stays_damaged_ends_it_in_one_sentence(hub, home):
    write_model(hub.remote)
    hub.damaged = 9
    with pytest.raises(WeightsError, match="came damaged 2 times from the hub"):
        await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    assert not list(home.rglob("layers-*"))


async def test_a_file_that_changed_on_the_disk_is_fetched_again(hub, home):
    write_model(hub.remote)
    found = await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    blob = (found / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    hub.fetched.clear()
    found = await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    assert hub.fetched == ["model.safetensors"]
    assert tensors_in(found) == tensors_in(hub.remote)


async def test_what_is_gone_from_the_cache_is_fetched_again(hub, home):
    write_model(hub.remote)
    await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    shutil.rmtree(home / "hub")
    found = await ensure_weights(SOURCE, range(LAYERS), home, QUICK)
    assert tensors_in(found) == tensors_in(hub.remote)
