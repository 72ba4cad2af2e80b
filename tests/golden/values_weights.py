"""Weights: the manifest, the parts on disk and their journals, requests for blocks, progress."""

import asyncio
import contextlib
import hashlib
import io
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from aiohttp import web

from molink.agents_api.offered_files import FileHashes, FileState, HashCache
from molink.api.server import start_api
from molink.checkpoint.safetensors_header import StoredTensor, encode_header, parse_header
from molink.checkpoint.shard_plan import plan_shards
from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest
from molink_agent.weights import __main__ as by_hand
from molink_agent.weights.block_client import open_client
from molink_agent.weights.part_file import PartFile, parts_of
from molink_agent.weights.source import CoordinatorSource, Downloaded
from molink_agent.weights.weights_dir import ModelFolder, make_view
from tests.golden.codec import Codec, from_text

BLOCK = 64
NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.q.weight",
    "model.layers.0.k.weight",
    "model.layers.1.q.weight",
    "model.norm.weight",
    "lm_head.weight",
)


def stored() -> list[StoredTensor]:
    sizes = (48, 32, 16, 80, 8, 24)
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [
        StoredTensor(name, "U8", (2, size // 2), end - size, end)
        for name, size, end in zip(NAMES, sizes, ends, strict=True)
    ]


def weight_file() -> bytes:
    prefix = encode_header(stored(), {"format": "pt"})
    return prefix + bytes(i % 251 for i in range(stored()[-1].stop))


def entry(name: str, content: bytes) -> FileEntry:
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
    more = {}
    if name.endswith(".safetensors"):
        start = 8 + int.from_bytes(content[:8], "little")
        more = {"header": json.loads(content[8:start]), "data_start": start}
    return FileEntry(
        name=name,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        blocks=tuple(hashlib.sha256(block).hexdigest() for block in blocks),
        **more,
    )


CONFIG = b'{"num_hidden_layers": 2, "tie_word_embeddings": false, "x": "0123456789"}'


def manifest() -> WeightsManifest:
    files = (
        entry("config.json", CONFIG),
        entry("empty.txt", b""),
        entry("model.safetensors", weight_file()),
    )
    return WeightsManifest(
        model="org/model", layers_total=2, tied=False, block_bytes=BLOCK, files=files
    )


MANIFESTS = Codec(
    "weights-manifest",
    lambda one: one.model_dump_json(),
    from_text(WeightsManifest.model_validate_json),
)
MANIFESTS.add(
    of_a_model=manifest,
    smallest=lambda: WeightsManifest(
        model="m",
        layers_total=1,
        tied=None,
        files=(FileEntry(name="config.json", size=0, sha256="0" * 64, blocks=()),),
    ),
)
REVISIONS = Codec("weights-revision", lambda one: one.revision)
REVISIONS.add(of_a_model=manifest)

HEADERS = Codec(
    "weights-safetensors-header",
    lambda tensors: encode_header(tensors, {"format": "pt"}).decode("latin-1"),
    lambda header: list(read_header(header.encode("latin-1"))),
)


def read_header(header: bytes) -> tuple[StoredTensor, ...]:
    assert len(header) % 8 == 0 and int.from_bytes(header[:8], "little") == len(header) - 8
    return parse_header(json.loads(header[8:]), 0).tensors


HEADERS.add(of_some_tensors=stored, of_none=list)

# -- parts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Download:
    """Of the stage of these layers, after these blocks of each file came."""

    layers: range
    blocks: tuple[int, ...] | None
    """None: all, and it was finished."""


def part_files(download: Download, folder: Path) -> list[PartFile]:
    offered = manifest()
    plan = plan_shards(offered.weight_map(), offered.shape, download.layers)
    return [PartFile(folder, part, BLOCK) for part in parts_of(offered, plan)]


def downloaded(download: Download) -> str:
    """Every file of the folder: journals as text, the others in hexadecimal."""
    contents = {"config.json": CONFIG, "empty.txt": b"", "model.safetensors": weight_file()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in part_files(download, folder):
            file.verify()
            content = contents[file.part.source.name]
            numbers = sorted(file.missing, reverse=True)
            for block in numbers if download.blocks is None else download.blocks:
                file.take(block, content[block * BLOCK : (block + 1) * BLOCK])
            if not file.missing:
                file.finish()
        lines = []
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            shown = data.decode() if path.suffix == ".journal" else data.hex() + "\n"
            lines.append(f"== {path.name}\n{shown}")
    return "".join(lines)


def held(download: Download) -> dict[str, list[int]]:
    """Blocks that are there afterwards, by part."""
    found = {}
    for file in part_files(download, Path("unused")):
        came = file.wanted if download.blocks is None else file.wanted & set(download.blocks)
        found[file.part.name] = sorted(came)
    return found


def found_again(dump: str, layers: range) -> dict[str, list[int]]:
    """By an agent that starts on the recorded files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in dump.split("== ")[1:]:
            title, content = part.split("\n", 1)
            data = content.encode() if title.endswith(".journal") else bytes.fromhex(content)
            (folder / title).write_bytes(data)
        found = {}
        for file in part_files(Download(layers, None), folder):
            file.verify()
            found[file.part.name] = sorted(file.held)
    return found


WHOLE, HALF_WAY = Download(range(2), None), Download(range(1), (0, 6, 8))


def read_downloaded(dump: str) -> Download:
    """The download that has left as much as is found again."""
    download = HALF_WAY if "== layer-00001." not in dump else WHOLE
    assert found_again(dump, download.layers) == held(download)
    return download


PARTS = Codec("weights-parts", downloaded, read_downloaded)
PARTS.add(of_the_whole_model=lambda: WHOLE, of_the_head_half_way=lambda: HALF_WAY)


def view(layers: range) -> str:
    """Where it lies, its links and its index."""
    with tempfile.TemporaryDirectory() as name:
        folder = ModelFolder.of(Path(name), "Org/Some Model_7B", "0123456789abcdef" * 4)
        files = {"layer-00000.model.safetensors": folder.parts / "layer-00000.model.safetensors"}
        directory = folder.view(layers)
        make_view(directory, files, {NAMES[1]: "layer-00000.model.safetensors"})
        lines = [str(directory.relative_to(name)), str(folder.parts.relative_to(name))]
        for path in sorted(directory.iterdir()):
            content = str(path.readlink()) if path.is_symlink() else path.read_text()
            lines.append(f"{path.name}: {content}")
    return "\n".join(lines)


VIEWS = Codec("weights-views", view)
VIEWS.add(of_some_layers=lambda: range(12))

# -- the coordinator's checksums ------------------------------------------------------------------

STATE = FileState("/modèles/model.safetensors", 2**40, 1_700_000_000_123_456_789)


def hash_cache(hashes: FileHashes) -> str:
    with tempfile.TemporaryDirectory() as name:
        HashCache(Path(name)).keep(STATE, BLOCK, hashes)
        (path,) = Path(name).iterdir()
        return f"{path.name} {path.read_text()}"


def read_hash_cache(line: str) -> FileHashes | None:
    file_name, content = line.split(" ", 1)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / file_name).write_text(content)
        return HashCache(Path(name)).find(STATE, BLOCK)


HASHES = Codec("weights-hash-cache", hash_cache, read_hash_cache)
HASHES.add(
    of_two_blocks=lambda: FileHashes("a" * 64, ("b" * 64, "c" * 64)),
    of_an_empty_file=lambda: FileHashes("d" * 64, ()),
)

# -- requests -------------------------------------------------------------------------------------


def requests_of(ask) -> str:
    """What a client sends, but for what its library says of itself."""
    lines = []
    offered = manifest()
    content = weight_file()

    async def serve(request: web.Request) -> web.StreamResponse:
        named = ("Authorization", "Range")
        headers = [f"{name}: {request.headers[name]}" for name in named if name in request.headers]
        lines.append(" | ".join([f"{request.method} {request.path}", *headers]))
        if request.path.endswith("/manifest"):
            return web.Response(body=offered.model_dump_json().encode())
        start, stop, _ = request.http_range.indices(len(content))
        told = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        return web.Response(status=206, body=content[start:stop], headers=told)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        runner = await start_api(app, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/weights"
        async with open_client(CoordinatorSource(url, "token")) as client:
            await ask(client)
        await runner.cleanup()

    asyncio.run(run())
    return "\n".join(lines)


REQUESTS = Codec("weights-requests", requests_of)


@REQUESTS.value
def manifest_and_blocks():
    async def ask(client):
        offered = await client.manifest()
        file = offered.file("model.safetensors")
        last = len(file.blocks) - 1
        assert [number async for number, _ in client.blocks(file, 1, 2, BLOCK)] == [1, 2]
        assert [number async for number, _ in client.blocks(file, last, last, BLOCK)] == [last]

    return ask


# -- lines of processes ---------------------------------------------------------------------------


def told_by_hand(fractions) -> str:
    async def ensured(source, layers, directory, progress):
        for fraction in fractions:
            progress(Downloaded(fraction, 10_000_000, 1.25e6))
        return directory / "layers-0-2"

    printed = io.StringIO()
    with patch.object(by_hand, "ensure_weights", ensured), contextlib.redirect_stdout(printed):
        assert by_hand.main("http://10.0.0.1:8000/weights", "0", "2", "/w") == 0
    return re.sub(r"\n$", "", printed.getvalue())


PROGRESS = Codec("weights-progress-lines", told_by_hand)
PROGRESS.add(of_a_download=lambda: (0.0, 0.5, 1.0))

CODECS = (
    MANIFESTS,
    REVISIONS,
    HEADERS,
    PARTS,
    VIEWS,
    HASHES,
    REQUESTS,
    PROGRESS,
)
