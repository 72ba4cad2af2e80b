"""Bad model files end `molink import`, `plan` and `serve` with one sentence, and leave nothing."""

import asyncio
import shutil
import struct

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.engine.loading import load_stage
from molink.errors import MolinkError
from molink.stage_protocol.messages import StageWork
from tests.checkpoint.gguf.written import Tensor, gguf_bytes, text
from tests.refusals import bad_checkpoints

LLAMA = {"general.architecture": "llama", "llama.block_count": 2}
NODES = '[[nodes]]\nname = "a"\ngpu = "rtx4090"\nupload_mbps = 10\ndownload_mbps = 20\n'


def pair(kind, value):
    return gguf_bytes({}, counts=(0, 1))[:24] + text("k") + struct.pack("<I", kind) + value


BAD = {
    "another format": b"GGUX" + bytes(60),
    "2^60 tensors": gguf_bytes({}, counts=(2**60, 0)),
    "2^60 elements": gguf_bytes(LLAMA, [Tensor("token_embd.weight", (2**60,), 0, b"")]),
    "out of bounds": gguf_bytes(LLAMA, [Tensor("m", (64, 3), 2, bytes(108), offset=10**9)]),
    "a text of 2^62 bytes": pair(8, struct.pack("<Q", 2**62)),
    "an array of 2^60 texts": pair(9, struct.pack("<IQ", 8, 2**60)),
    "truncated": gguf_bytes(LLAMA, [Tensor("m", (64, 3), 2, bytes(108))])[:-100],
    "a type that is not read": gguf_bytes(LLAMA, [Tensor("m", (256, 1), 16, bytes(66))]),
    "tensors missing": gguf_bytes(LLAMA),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_gguf_file_is_one_sentence(name, tmp_path):
    path, nodes = tmp_path / "bad.gguf", tmp_path / "nodes.toml"
    path.write_bytes(BAD[name])
    nodes.write_text(NODES)
    commands = (["import", str(path)], ["plan", str(path), "--nodes", str(nodes)])
    for words in commands:
        with pytest.raises(MolinkError) as raised:
            CliRunner().invoke(cli, words, catch_exceptions=False)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 400
    assert {one.name for one in tmp_path.iterdir()} == {"bad.gguf", "nodes.toml"}


# -- folders --------------------------------------------------------------------------------------


class StagesStartError(Exception):
    """Raised where `serve` would start its stages, which then read the weights."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "model"
    bad_checkpoints.good(folder)
    return folder


@pytest.fixture
def no_processes(monkeypatch):
    async def refused(*words, **options):
        raise StagesStartError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)


def load(folder):
    """A stage in this process: no layer is left out."""
    load_stage(str(folder), StageWork((0, 7), device="cpu", dtype="float32", kv_tokens=64))


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("name", bad_checkpoints.BAD)
def test_a_bad_checkpoint_is_one_sentence(name, good, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    bad_checkpoints.BAD[name](folder)
    with pytest.raises(MolinkError) as raised:
        try:
            serve = ["serve", str(folder), "--port", "0", "--nodes", "3", "--dtype", "float32"]
            CliRunner().invoke(cli, serve, catch_exceptions=False)
        except StagesStartError:
            load(folder)
    found = raised.value
    assert "\n" not in str(found) and "\x1b" not in str(found)
    assert len(str(found)) < 500 + len(str(folder))


def test_a_good_one_is_loaded(good):
    load(good)


def test_quantized_weights_are_not_imported_without_their_scheme(good, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    bad_checkpoints.BAD["no scheme for quantized weights"](folder)
    words = ["import", str(folder), "--weights", "int8", "--out", str(tmp_path / "made")]
    with pytest.raises(MolinkError, match="quantized"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    assert not (tmp_path / "made").exists()
