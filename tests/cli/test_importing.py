"""`molink import` as a user types it."""

import json

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError
from molink.models import DEMO_MODEL_DIR
from tests.checkpoint.gguf.written import Tensor, write_gguf
from tests.importing.gguf.test_file import LLAMA, plain


def run(*words):
    return CliRunner().invoke(cli, ["import", *map(str, words)], catch_exceptions=False)


def refused(*words):
    with pytest.raises(UserError) as raised:
        run(*words)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_the_demo_model_in_four_bits(tmp_path):
    out = tmp_path / "small"
    result = run(DEMO_MODEL_DIR, "--weights", "int4", "--group", "32", "--out", out, "--json")
    said = json.loads(result.stdout)
    written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    assert said["folder"] == str(out) and 0 < written - said["weight_bytes"] < 50_000
    assert written < 0.5 * (DEMO_MODEL_DIR / "model.safetensors").stat().st_size
    kept = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert kept <= {path.name for path in out.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == {"small"}


def test_the_demo_model_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "demo-int8 holds 9.7 MB of" in run("demo", "--weights", "int8").output
    assert (tmp_path / "demo-int8" / "config.json").is_file()


def test_words_that_do_not_fit_are_refused(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    assert "--weights" in refused(DEMO_MODEL_DIR)
    assert "--config is for GGUF" in refused(DEMO_MODEL_DIR, "--weights", "int8", "--config", ".")
    assert "--group is for" in refused(DEMO_MODEL_DIR, "--weights", "int8", "--group", "64")
    assert "not a GGUF file" in refused(file, "--weights", "int4")
    assert "There is no file" in refused(tmp_path / "none.gguf")
    assert "There is no file" in refused(tmp_path / "none", "--weights", "int4")


def test_a_folder_with_one_model_is_imported_and_says_what_is_written_anew(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    folder.mkdir()
    write_gguf(folder / "mmproj-F16.gguf", {"general.architecture": "clip"})
    write_gguf(folder / "m-IQ4_NL.gguf", LLAMA | SMALLEST, [*WHOLE, DOWN])
    monkeypatch.chdir(tmp_path)
    output = run("models").output
    assert "m-IQ4_NL-gguf holds" in output
    assert output.endswith("than in the file: tensors 1 in IQ4_NL.\n")
    assert (folder / "m-IQ4_NL-gguf" / "config.json").is_file()
    assert "mmproj" in refused(folder / "mmproj-F16.gguf", "--out", tmp_path / "new")


SMALLEST = {
    "llama.feed_forward_length": 32,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b"],
}
WHOLE = [
    plain("token_embd.weight", 8, 4),
    plain("output_norm.weight", 8),
    *(plain(f"blk.0.{part}_norm.weight", 8) for part in ("attn", "ffn")),
    *(plain(f"blk.0.attn_{part}.weight", 8, 8) for part in ("q", "k", "v", "output")),
    *(plain(f"blk.0.ffn_{part}.weight", 8, 32) for part in ("gate", "up")),
]
DOWN = Tensor("blk.0.ffn_down.weight", (32, 8), 20, bytes(18 * 8))


def test_nothing_is_overwritten_and_nothing_is_left_of_what_failed(tmp_path):
    (tmp_path / "out").mkdir()
    words = (DEMO_MODEL_DIR, "--weights", "int8", "--out")
    assert "is there already" in refused(*words, tmp_path / "out")
    assert "There is no folder" in refused(*words, tmp_path / "a" / "b")
    file = write_gguf(tmp_path / "m.gguf", {"general.architecture": "falcon"})
    assert "architecture falcon" in refused(file, "--out", tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "m.gguf"}


def test_a_full_disk_is_told_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Disk", (), {"free": 2**28 + 5}))
    said = refused(DEMO_MODEL_DIR, "--weights", "int8", "--out", tmp_path / "out")
    assert "are free there" in said and not list(tmp_path.iterdir())
