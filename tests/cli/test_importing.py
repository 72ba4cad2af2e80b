"""`molink import` as a user types it."""

import json

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError
from molink.models import DEMO_MODEL_DIR
from tests.checkpoint.gguf.written import write_gguf


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
