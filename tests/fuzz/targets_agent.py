"""What a coordinator, a router, or a program of the owner's PC can send to an agent; and what a
stage process and its parent tell each other."""

import json
import struct
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError

from molink.checkpoint.gguf.header import read_gguf
from molink.checkpoint.model_config import model_shape
from molink.checkpoint.quantized.declared import declared_quantization
from molink.checkpoint.quantized.recognised import quantized_weights
from molink.checkpoint.safetensors_header import parse_header, read_header
from molink.checkpoint.shard_plan import plan_shards
from molink.checkpoint.weights_manifest import WeightsManifest
from molink.errors import (
    CheckpointError,
    ControlError,
    FrameError,
    UnsupportedModelError,
    UserError,
    WeightsError,
)
from molink.stage_protocol.messages import decode_line
from molink_agent.daemon.membership import _refusal
from molink_agent.local_socket import read_question
from molink_agent.network.gateway import NatPmpGateway, is_answer
from molink_agent.weights.block_client import RETRY_AFTER_S_MAX, _retry_after_s
from molink_agent.weights.part_file import PartFile, parts_of
from tests.checkpoint.gguf.written import Tensor as GgufTensor
from tests.checkpoint.gguf.written import gguf_bytes
from tests.fuzz.target import MIB, Target, golden, golden_bytes, json_seeds

_MEMORY = Path("/dev/shm")
SCRATCH = tempfile.TemporaryDirectory(
    prefix="molink-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None
)
FOLDER = Path(SCRATCH.name)
"""Removed when the interpreter ends."""

# -- weights --------------------------------------------------------------------------------------

MANIFESTS = golden_bytes("weights-manifest")


def _manifest(data: bytes) -> None:
    """A coordinator's list of files, and what a node would fetch and write by it."""
    manifest = WeightsManifest.model_validate_json(data)
    files = {
        tensor.name: entry.name
        for entry in manifest.files
        for tensor in (entry.table.tensors if entry.table else ())
    }
    plan = plan_shards(files, manifest.shape, range(min(manifest.layers_total, 1)))
    for part in parts_of(manifest, plan):
        assert "/" not in part.name and not part.name.startswith(".")
        for block in part.blocks(manifest.block_bytes)[:64]:
            for cut in part.cuts(block, manifest.block_bytes):
                assert 0 <= cut.start < cut.stop <= manifest.block_bytes and cut.local >= 0


def _journal(data: bytes) -> None:
    """What lies beside a part after a crash, or after somebody has written to the disk."""
    manifest = WeightsManifest.model_validate_json(MANIFESTS[0])
    part = next(one for one in parts_of(manifest, _plan_of_all(manifest)) if one.runs)
    file = PartFile(FOLDER, part, manifest.block_bytes)
    lines, _, content = data.partition(b"\0")
    file.path.unlink(missing_ok=True)
    file.journal.write_bytes(lines)
    file.partial.write_bytes(content)
    file.verify()
    assert set(file.held) <= file.wanted


def _plan_of_all(manifest: WeightsManifest) -> Any:
    return plan_shards({}, manifest.shape, range(manifest.layers_total))


def _journal_seeds() -> tuple[bytes, ...]:
    text = golden("weights-parts")["of_the_head_half_way"]
    files = dict(one.split("\n", 1) for one in text.removeprefix("== ").split("\n== "))
    journal = files["config.json.journal"].encode() + b"\n"
    return (journal + b"\0" + bytes.fromhex(files["config.json.partial"].strip()), journal, b"")


def _safetensors(data: bytes) -> object:
    path = FOLDER / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    return read_header(path)


def _gguf(data: bytes) -> object:
    path = FOLDER / "model.gguf"
    path.write_bytes(data)
    header = read_gguf(path)
    return [header.array(key) for key in header.metadata]


GGUF = (
    gguf_bytes(
        {"a": "b", "n": 3, "t": ["x", "yz"], "s": [0.5, 1.0]},
        [GgufTensor("m", (32, 2), 2, bytes(36))],
    ),
    gguf_bytes({"general.alignment": 64}, [GgufTensor("n", (4,), 0, bytes(16))], alignment=64),
)


def _config(data: bytes) -> object:
    path = FOLDER / "config.json"
    path.write_bytes(data)
    return model_shape(path)


def _quantized(data: bytes) -> object:
    """A config and a table of tensors that are somebody's checkpoint."""
    try:
        config, table = json.loads(data)
    except (TypeError, RecursionError) as error:
        raise ValueError("not two of anything") from error
    if not isinstance(config, dict):
        raise ValueError("no config")
    weights = quantized_weights(
        "m", parse_header(table, 0).tensors, declared_quantization("m", config)
    )
    return [(one.file_bytes, one.held_bytes(2)) for one in weights.values()]


def _quantized_seeds() -> tuple[bytes, ...]:
    def table(**tensors: tuple[str, list[int], int]) -> dict[str, Any]:
        entries, at = {}, 0
        for name, (dtype, shape, size) in tensors.items():
            entries[f"a.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        return entries

    group = {"weights": {"num_bits": 4, "group_size": 32}, "format": "pack-quantized"}
    schemes = (
        {"quant_method": "compressed-tensors", "config_groups": {"g": group}},
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "mxfp4"},
    )
    tables = (
        table(
            weight_packed=("I32", [8, 8], 256),
            weight_scale=("BF16", [8, 2], 32),
            weight_shape=("I64", [2], 16),
        ),
        table(
            qweight=("I32", [8, 16], 512),
            qzeros=("I32", [2, 2], 16),
            scales=("F16", [2, 16], 64),
            g_idx=("I32", [64], 256),
        ),
        table(weight=("F8_E4M3", [8, 64], 512), weight_scale_inv=("F32", [1, 1], 4)),
        table(x_blocks=("U8", [2, 4, 1, 16], 128), x_scales=("U8", [2, 4, 1], 8)),
    )
    configs = [{"model_type": "llama", "quantization_config": scheme} for scheme in schemes]
    return json_seeds(*(list(pair) for pair in zip(configs, tables, strict=True)))


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32},
}


def _retry_after(data: bytes) -> None:
    headers = {"Retry-After": data.decode("latin-1")}
    assert 0 < _retry_after_s(SimpleNamespace(headers=headers)) <= RETRY_AFTER_S_MAX


# -- routers and the owner's own programs ---------------------------------------------------------


class _Router(NatPmpGateway):
    """Router that answers with one datagram, checked as a real one's is."""

    def __init__(self, datagram: bytes) -> None:
        NatPmpGateway.__init__(self, "192.0.2.1")
        self.datagram = datagram

    def _ask(self, request: bytes, operation: int, size: int) -> bytes:
        if is_answer(self.datagram, operation, size):
            return self.datagram
        raise OSError("no answer")


ROUTER = (
    struct.pack("!BBHI4s", 0, 128, 0, 1, b"\xcb\0\x71\1"),
    struct.pack("!BBHIHHI", 0, 130, 0, 1, 7000, 7001, 3600),
    struct.pack("!BBHI", 0, 130, 2, 1),
)


def _router(data: bytes) -> None:
    router = _Router(data)
    for ask in (router.discover, lambda: router.map(7000, 3600)):
        try:
            ask()
        except OSError:
            continue


TARGETS = (
    Target(
        "weights-manifest",
        _manifest,
        (ValidationError, UserError, WeightsError),
        MANIFESTS,
        "json",
        memory_bytes=4 * MIB,
    ),
    Target("part-journal", _journal, (), _journal_seeds()),
    Target(
        "safetensors-header",
        _safetensors,
        (CheckpointError,),
        tuple(text.encode("latin-1")[8:] for text in golden("weights-safetensors-header").values()),
        "json",
    ),
    Target("gguf-header", _gguf, (CheckpointError, UnsupportedModelError), GGUF),
    Target(
        "quantized-weights",
        _quantized,
        (CheckpointError, UnsupportedModelError, ValueError),
        _quantized_seeds(),
        "json",
    ),
    Target("model-config", _config, (UserError,), json_seeds(CONFIG), "json"),
    Target("retry-after", _retry_after, (), (b"5", b"1.5", b"Wed, 21 Oct 2015 07:28:00 GMT")),
    Target("router-answer", _router, (), ROUTER),
    Target(
        "agent-question",
        read_question,
        (ValueError,),
        golden_bytes("agent-socket-questions"),
        "json",
    ),
    Target("stage-line", decode_line, (FrameError,), golden_bytes("stage-lines"), "json"),
    Target(
        "join-refusal",
        lambda data: _refusal(403, data),
        (ControlError,),
        json_seeds({"error": {"message": "no", "type": "t", "param": None, "code": "c"}}),
        "json",
    ),
)
