"""The coordinator's weights, as a node or a stranger finds them."""

import asyncio
import gzip
import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from molink.agents_api import offered_files
from molink.agents_api import weights_routes as weights
from molink.agents_api.offered_files import (
    FileState,
    HashCache,
    HashingStopped,
    OfferedFiles,
    hash_file,
)
from molink.agents_api.slots import (
    DownloadSlots,
)
from molink.agents_api.weights_routes import add_weights_routes
from molink.api.errors import errors_in_shape
from molink.api.server import start_api
from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink.checkpoint.weights_manifest import WeightsManifest
from molink.control.versions import PROTOCOL_HEADER
from molink.errors import CheckpointError
from molink.wire.protocol import PROTOCOL_VERSION

BLOCK = 100
TOKEN = {"Authorization": "Bearer right", PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
FILE = "model.safetensors"


@pytest.fixture
def model(tmp_path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    facts = dict(model_type="llama", num_hidden_layers=2, hidden_size=8, vocab_size=9)
    facts |= dict(max_position_embeddings=64, tie_word_embeddings=True)
    (directory / "config.json").write_text(json.dumps(facts))
    (directory / "notes.md").write_text("not for nodes")
    (tmp_path / "secret.json").write_text("{}")
    tensors = [StoredTensor(f"model.layers.{n}.a", "U8", (400,), n, n + 400) for n in range(2)]
    (directory / FILE).write_bytes(encode_header(tensors, {"format": "pt"}) + os.urandom(800))
    return directory


@pytest.fixture
async def start(model, tmp_path):
    """`await start()` gives the URL of offered files, and the files."""
    ends = []

    async def begin(*, ready: bool = True, **options) -> tuple[str, OfferedFiles]:
        checkpoint = open_checkpoint(str(model))
        offered = OfferedFiles(checkpoint, tmp_path / "sums", name="m", block_bytes=BLOCK)
        app = web.Application(middlewares=[errors_in_shape])
        add_weights_routes(app, offered, {"right": "pc"}.get, **options)
        runner = await start_api(app, "127.0.0.1", 0)
        await offered.start()
        ends.extend([offered.close, runner.cleanup])
        if ready:
            await offered.ready()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/weights", offered

    yield begin
    for end in ends:
        await end()


async def get(url: str, headers: dict = TOKEN) -> tuple[int, bytes, dict]:
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as response:
        return response.status, await response.read(), response.headers


def sentence(body: bytes) -> str:
    message = json.loads(body)["error"]["message"]
    assert "\n" not in message
    return message


async def test_the_manifest_says_what_there_is(start, model):
    url, _ = await start()
    status, body, _ = await get(f"{url}/manifest")
    manifest = WeightsManifest.model_validate_json(body)
    assert (status, manifest.model, manifest.layers_total, manifest.tied) == (200, "m", 2, True)
    assert [entry.name for entry in manifest.files] == ["config.json", FILE]
    data = (model / FILE).read_bytes()
    entry = manifest.file(FILE)
    assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert entry.blocks == tuple(
        hashlib.sha256(data[at : at + BLOCK]).hexdigest() for at in range(0, len(data), BLOCK)
    )
    tensor = entry.table.tensors[1]
    assert data[tensor.start : tensor.stop] == data[-400:]
    assert manifest.weight_map() == {f"model.layers.{n}.a": FILE for n in range(2)}


async def test_a_model_that_drafts_lies_beside_the_served_one(start, tmp_path):
    """One cap and one line of downloads for both; names of one are none of the other's."""
    small = shutil.copytree(tmp_path / "model", tmp_path / "small")
    (small / "more.json").write_text("{}")
    drafter = OfferedFiles(open_checkpoint(str(small)), tmp_path / "sums", name="small")
    url, _ = await start(drafter=drafter)
    assert (await get(f"{url}/drafter/manifest"))[0] == 503, "not hashed yet"
    await drafter.start()
    await drafter.ready()
    status, body, _ = await get(f"{url}/drafter/manifest")
    assert (status, WeightsManifest.model_validate_json(body).model) == (200, "small")
    assert (await get(f"{url}/drafter/files/more.json"))[:2] == (200, b"{}")
    assert (await get(f"{url}/files/more.json"))[0] == 404
    assert (await get(f"{url}/drafter/manifest", {}))[0] == 401
    await drafter.close()


async def test_without_a_model_that_drafts_there_is_none(start):
    url, _ = await start()
    assert (await get(f"{url}/drafter/manifest"))[0] == 404


async def test_the_manifest_travels_compressed(start):
    url, _ = await start()
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.get(f"{url}/manifest", headers={**TOKEN, "Accept-Encoding": "gzip"}) as response,
    ):
        assert json.loads(gzip.decompress(await response.read()))["format"] == 1


async def test_a_node_that_asks_for_the_manifest_all_the_time_is_sent_away(start, monkeypatch):
    """It is compressed once, and a member cannot have the coordinator send it without end."""
    packed, compress = [], gzip.compress
    monkeypatch.setattr(
        weights.gzip, "compress", lambda raw, **fixed: packed.append(1) or compress(raw, **fixed)
    )
    url, _ = await start()
    got = [await get(f"{url}/manifest") for _ in range(weights.MANIFESTS_FREE + 2)]
    statuses = [status for status, _, _ in got]
    assert statuses == [200] * len(statuses[:-1]) + [503] and len(packed) == 1
    assert "once in a while" in sentence(got[-1][1]) and "Retry-After" in got[-1][2]


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-9", 0, 9), ("bytes=100-299", 100, 299), ("bytes=-5", -5, -1), ("bytes=7-", 7, -1)],
)
async def test_a_range_of_a_file(start, model, asked, first, last):
    url, _ = await start()
    data = (model / FILE).read_bytes()
    status, body, headers = await get(f"{url}/files/{FILE}", {**TOKEN, "Range": asked})
    first, last = first % len(data), last % len(data)
    assert (status, body) == (206, data[first : last + 1])
    assert headers["Content-Range"] == f"bytes {first}-{last}/{len(data)}"


async def test_a_whole_file(start, model, monkeypatch):
    monkeypatch.setattr(weights, "CHUNK_BYTES", 64)
    url, _ = await start()
    assert (await get(f"{url}/files/{FILE}"))[:2] == (200, (model / FILE).read_bytes())


@pytest.mark.parametrize("asked", ["bytes=5000-5001", "bytes=9-3", "lines=1-2", "bytes=a-b"])
async def test_a_range_that_is_none(start, asked):
    url, _ = await start()
    status, body, headers = await get(f"{url}/files/{FILE}", {**TOKEN, "Range": asked})
    assert status == 416
    assert "ask for a range that lies in them" in sentence(body)
    assert headers["Content-Range"].startswith("bytes */")


@pytest.mark.parametrize("path", ["manifest", f"files/{FILE}", "files/nothing"])
@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({}, 401, "bearer token"),
        ({"Authorization": "Basic right"}, 401, "bearer token"),
        ({"Authorization": "Bearer "}, 401, "bearer token"),
        ({"Authorization": "Bearer wrong"}, 403, "of no node"),
    ],
)
async def test_without_a_nodes_token(start, path, headers, status, says):
    url, _ = await start()
    found, body, _ = await get(f"{url}/{path}", headers)
    assert found == status
    assert says in sentence(body)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (None, "that PC"),
        ("", "that PC"),
        ("two", "that PC"),
        ("9" * 5000, "that PC"),
        (str(PROTOCOL_VERSION - 1), "that PC"),
        (str(PROTOCOL_VERSION + 1), "the coordinator's machine"),
    ],
)
async def test_a_node_of_another_protocol_is_given_none(start, told, says):
    url, _ = await start()
    headers = {name: value for name, value in TOKEN.items() if name != PROTOCOL_HEADER}
    headers |= {} if told is None else {PROTOCOL_HEADER: told}
    found, body, _ = await get(f"{url}/manifest", headers)
    assert found == 409 and f"update MoLink on {says}" in sentence(body)


@pytest.mark.parametrize(
    "name",
    ["notes.md", "..%2fsecret.json", "%2e%2e%2fsecret.json", "..", "%2fetc%2fpasswd", "x" * 999],
)
async def test_only_names_of_the_manifest(start, name):
    url, _ = await start()
    async with aiohttp.ClientSession() as http:
        asked = URL(f"{url}/files/{name}", encoded=True)
        async with http.get(asked, headers=TOKEN) as response:
            assert response.status == 404


async def test_until_files_are_hashed_one_is_told_to_come_back(start, monkeypatch):
    go = threading.Event()
    slow = offered_files.hash_file

    def held(*arguments):
        go.wait()
        return slow(*arguments)

    monkeypatch.setattr("molink.agents_api.offered_files.hash_file", held)
    waited = []
    url, offered = await start(ready=False, made_wait=waited.append)
    for path in ("manifest", f"files/{FILE}"):
        status, body, headers = await get(f"{url}/{path}")
        assert status == 503
        assert int(headers["Retry-After"]) > 0
        assert "come back" in sentence(body)
    assert waited == ["pc", "pc"], "it is not to blame for the time"
    go.set()
    await offered.ready()
    assert (await get(f"{url}/manifest"))[0] == 200
    assert (await get(f"{url}/files/{FILE}"))[0] == 200
    assert waited == ["pc", "pc"], "the whole line was its own"


@pytest.mark.parametrize("options", [{}, {"bytes_per_s_max": 1e9}])
async def test_a_pc_that_has_not_the_whole_line_is_excused(start, monkeypatch, options):
    others = not options
    monkeypatch.setattr(DownloadSlots, "has_others", lambda self, pc: others)
    waited = []
    url, _ = await start(made_wait=waited.append, **options)
    assert (await get(f"{url}/files/{FILE}"))[0] == 200
    assert waited == ["pc", "pc"], "as it asks, and with each chunk"


async def test_sums_are_kept_from_one_start_to_the_next(start, model, monkeypatch):
    await start()
    hashed = []
    monkeypatch.setattr(
        "molink.agents_api.offered_files.hash_file",
        lambda path, *rest: hashed.append(path.name) or hash_file(path, *rest),
    )
    await start()
    assert hashed == []
    (model / FILE).write_bytes((model / FILE).read_bytes()[:-1] + b"!")
    os.utime(model / FILE, ns=(1, 1))
    url, _ = await start()
    assert hashed == [FILE]
    body = (await get(f"{url}/manifest"))[1]
    digest = hashlib.sha256((model / FILE).read_bytes()).hexdigest()
    assert WeightsManifest.model_validate_json(body).file(FILE).sha256 == digest


async def test_a_file_that_changed_while_it_is_served(start, model):
    url, _ = await start()
    os.utime(model / FILE, ns=(1, 1))
    status, body, _ = await get(f"{url}/files/{FILE}")
    assert status == 500
    assert "restart it" in sentence(body)


async def test_a_model_whose_files_cannot_be_read(start, model):
    (model / FILE).write_bytes(b"no safetensors")
    url, offered = await start(ready=False)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        await offered.ready()
    status, body, _ = await get(f"{url}/manifest")
    assert status == 500
    assert "cannot read its weights" in sentence(body)


async def test_closing_stops_the_hashing(model, tmp_path, monkeypatch):
    offered = OfferedFiles(open_checkpoint(str(model)), tmp_path / "sums", block_bytes=BLOCK)
    await offered.start()
    await offered.close()
    assert offered.failure is None


def test_hashing_stops_when_told(model):
    stop = threading.Event()
    stop.set()
    with pytest.raises(HashingStopped):
        hash_file(model / FILE, BLOCK, stop, lambda size: None)


def test_a_cache_that_cannot_be_written_is_no_cache(model, tmp_path):
    (tmp_path / "file").write_text("")
    cache = HashCache(tmp_path / "file")
    state = FileState.of(model / FILE)
    cache.keep(state, BLOCK, hash_file(model / FILE, BLOCK, threading.Event(), lambda size: None))
    assert cache.find(state, BLOCK) is None


async def test_who_finds_no_slot_is_sent_away(start, monkeypatch):
    monkeypatch.setattr("molink.agents_api.slots.WAITING_MAX", 0)
    url, _ = await start()
    status, body, headers = await get(f"{url}/files/{FILE}")
    assert (status, "Retry-After" in headers) == (503, True)
    assert "Other nodes are downloading" in sentence(body)


async def test_who_reads_nothing_any_more_gives_the_slot_back(start, monkeypatch):
    monkeypatch.setattr(weights, "STALL_S", 0.01)
    url, _ = await start(downloads_max=1)

    async def write(self, data):
        await asyncio.Event().wait()

    with monkeypatch.context() as patched, pytest.raises(aiohttp.ClientError):
        patched.setattr(web.StreamResponse, "write", write)
        await get(f"{url}/files/{FILE}", {**TOKEN, "Range": "bytes=0-99"})
    assert (await get(f"{url}/files/{FILE}", {**TOKEN, "Range": "bytes=0-99"}))[0] == 206


async def test_a_pc_whose_line_went_away_asks_again_and_is_served_at_once(start, monkeypatch):
    url, _ = await start(downloads_max=1)
    write, held = web.StreamResponse.write, asyncio.Event()

    async def first_never_leaves(self, data):
        if not held.is_set():
            held.set()
            await asyncio.Event().wait()
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", first_never_leaves)
    ranged = {**TOKEN, "Range": "bytes=0-99"}
    async with asyncio.timeout(10):
        ghost = asyncio.create_task(get(f"{url}/files/{FILE}", ranged))
        await held.wait()
        assert (await get(f"{url}/files/{FILE}", ranged))[0] == 206
        with pytest.raises(aiohttp.ClientError):
            await ghost


async def test_a_capped_download_waits_for_its_time(start, monkeypatch):
    monkeypatch.setattr(weights, "CHUNK_BYTES", 100)
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("molink.agents_api.slots.asyncio.sleep", sleep)
    url, _ = await start(bytes_per_s_max=10.0)
    assert (await get(f"{url}/files/{FILE}", {**TOKEN, "Range": "bytes=0-499"}))[0] == 206
    assert [round(seconds) for seconds in slept] == [10, 20, 30, 40]
