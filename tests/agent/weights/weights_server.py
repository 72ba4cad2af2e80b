"""A made-up model, a real coordinator's shelf of it on loopback, and faults on the way."""

import asyncio
import json
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from molink.agents_api.offered_files import OfferedFiles
from molink.agents_api.weights_routes import add_weights_routes
from molink.api.errors import errors_in_shape
from molink.api.server import start_api
from molink.checkpoint.checkpoint import INDEX, open_checkpoint
from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink_agent.weights import CoordinatorSource, WeightsLimits

TOKEN = "node-token"
BLOCK = 1024
LAYERS = 6
EMBEDDING_BYTES, NORM_BYTES, MATRIX_BYTES = 6_400, 64, 3_000
LAYER_BYTES = NORM_BYTES + MATRIX_BYTES

QUICK = WeightsLimits(disk_reserve_bytes=0, failures_max=4, pause_s=0.01, pause_s_max=0.02)


def tensor_sizes(*, tied: bool = False) -> dict[str, int]:
    sizes = {"model.embed_tokens.weight": EMBEDDING_BYTES}
    for layer in range(LAYERS):
        sizes[f"model.layers.{layer}.input_layernorm.weight"] = NORM_BYTES
        sizes[f"model.layers.{layer}.mlp.up_proj.weight"] = MATRIX_BYTES
    sizes["model.norm.weight"] = NORM_BYTES
    return sizes if tied else {"lm_head.weight": EMBEDDING_BYTES, **sizes}


def write_model(directory: Path, *, files: int = 1, tied: bool = False, seed: int = 0) -> Path:
    """A llama's files with random bytes for weights, in as many shards."""
    directory.mkdir(parents=True, exist_ok=True)
    sizes = list(tensor_sizes(tied=tied).items())
    share = -(-len(sizes) // files)
    weight_map = {}
    for number in range(files):
        name = "model.safetensors" if files == 1 else f"model-{number}.safetensors"
        some = sizes[number * share : (number + 1) * share]
        (directory / name).write_bytes(safetensors_bytes(some, random.Random(seed + number)))
        weight_map |= {tensor: name for tensor, _ in some}
    if files > 1:
        (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    config = dict(model_type="llama", num_hidden_layers=LAYERS, hidden_size=8, vocab_size=9)
    config |= dict(max_position_embeddings=64, tie_word_embeddings=tied)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps({"filler": "x" * 2500}))
    return directory


def safetensors_bytes(sizes: list[tuple[str, int]], source: random.Random) -> bytes:
    tensors, end = [], 0
    for name, size in sizes:
        tensors.append(StoredTensor(name, "U8", (size,), end, end + size))
        end += size
    return encode_header(tensors, {"format": "pt"}) + source.randbytes(end)


@dataclass
class Fault:
    """What goes wrong with one answer: some bytes of it altered, the rest of it not sent."""

    altered: int | None = None
    """Offset of a byte in the answer."""
    cut: int | None = None
    """Bytes that are sent; then the connection is reset or, with `hold`, keeps still."""
    hold: bool = False
    status: int | None = None
    """Instead of all that, this status."""


@dataclass
class ShelfServer:
    """One coordinator; can end and come back on the same port."""

    model: Path
    cache: Path
    block_bytes: int = BLOCK
    options: dict = field(default_factory=dict)
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    faults: deque[Fault] = field(default_factory=deque)
    """Of the next answers with file bytes, in turn."""
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    """File, first byte, byte after the last."""
    port: int = 0
    _runner: web.AppRunner | None = None
    _shelf: OfferedFiles | None = None

    async def start(self, *, ready: bool = True) -> None:
        self._shelf = OfferedFiles(
            open_checkpoint(str(self.model)),
            self.cache,
            name="tiny/model",
            block_bytes=self.block_bytes,
        )
        app = web.Application(middlewares=[errors_in_shape, self._with_faults])
        add_weights_routes(app, self._shelf, self._pc_of_token, **self.options)
        self._runner = await start_api(app, "127.0.0.1", self.port)
        self.port = self._runner.addresses[0][1]
        await self._shelf.start()
        if ready:
            await self._shelf.ready()

    def _pc_of_token(self, token: str) -> str | None:
        return "pc" if token in self.tokens else None

    async def stop(self) -> None:
        if self._runner is not None:
            await self._shelf.close()
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/weights"

    @property
    def source(self) -> CoordinatorSource:
        return CoordinatorSource(self.url, TOKEN)

    def bytes_asked(self, name: str = "") -> int:
        return sum(stop - start for file, start, stop in self.asked if name in file)

    def blocks_asked(self, name: str) -> list[int]:
        return [
            block
            for file, start, stop in self.asked
            if file == name
            for block in range(start // self.block_bytes, -(-stop // self.block_bytes))
        ]

    @web.middleware
    async def _with_faults(self, request: web.Request, handler) -> web.StreamResponse:
        name = request.match_info.get("name")
        if name is None or name not in self._shelf.files:
            return await handler(request)
        size = (self.model / name).stat().st_size
        start, stop, _ = request.http_range.indices(size)
        self.asked.append((name, start, stop))
        if not self.faults:
            return await handler(request)
        return await self._faulty(request, self.faults.popleft(), name, (start, stop, size))

    async def _faulty(self, request, fault: Fault, name: str, place) -> web.StreamResponse:
        if fault.status is not None:
            return web.Response(status=fault.status, text="upset")
        start, stop, size = place
        data = bytearray((self.model / name).read_bytes()[start:stop])
        if fault.altered is not None:
            data[fault.altered] ^= 0x40
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[: fault.cut])
        if fault.hold:
            await asyncio.Event().wait()
        if fault.cut is not None:
            request.transport.abort()
        return response
