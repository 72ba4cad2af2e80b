"""A plan of a file counts what its import would give, and reads no weights for it."""

import pytest

from molink.checkpoint.layer_sizes import planned_model
from molink.errors import UserError
from molink.importing.gguf import recoding
from molink.importing.gguf.file import import_gguf
from molink.importing.plain_model import import_plain
from molink.importing.planned import gguf_of, is_gguf, planned_gguf, planned_rounded
from tests.engine.tiny_models import save_tiny
from tests.importing.gguf_models import save_gguf


def quiet(done, total):
    assert 0 < done <= total


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "gpt_oss", "gemma3_text"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_gguf_file_is_planned_as_what_its_import_gives(name, kv_dtype, tmp_path):
    save_gguf(name, tmp_path / "m.gguf")
    planned = planned_gguf(tmp_path / "m.gguf", kv_dtype)
    import_gguf(tmp_path / "m.gguf", tmp_path / "out", None, quiet)
    after = planned_model(str(tmp_path / "out"), kv_dtype)
    assert (planned.costs, planned.measured) == (after.costs, True)
    assert planned.shape.kv_token_bytes == after.shape.kv_token_bytes


def test_no_weights_of_a_gguf_file_are_read(tmp_path, monkeypatch):
    save_gguf("llama", tmp_path / "m.gguf")

    def read(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr(recoding, "_read", read)
    assert planned_gguf(tmp_path / "m.gguf").cost.layers > 1


@pytest.mark.parametrize(("bits", "group"), [("int4", 32), ("int4", 128), ("int8", 128)])
@pytest.mark.parametrize("name", ["llama", "tied_llama", "qwen3_moe"])
def test_a_plain_model_is_planned_as_it_would_be_rounded(name, bits, group, tmp_path):
    save_tiny(name, tmp_path / "plain")
    planned = planned_rounded(tmp_path / "plain", bits, group)
    import_plain(tmp_path / "plain", tmp_path / "out", bits, group, quiet)
    assert planned.costs == planned_model(str(tmp_path / "out")).costs


def test_a_quantized_folder_is_not_planned_as_if_it_were_rounded(tmp_path):
    save_tiny("llama", tmp_path / "plain")
    import_plain(tmp_path / "plain", tmp_path / "out", "int8", 128, quiet)
    with pytest.raises(UserError, match="is quantized already"):
        planned_rounded(tmp_path / "out", "int4", 128)


def test_a_gguf_file_is_known_by_how_it_begins(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "config.json").write_text("{}")
    assert is_gguf(tmp_path / "a.bin") and not is_gguf(tmp_path / "config.json")
    assert not is_gguf(tmp_path) and not is_gguf(tmp_path / "nothing")


def test_the_model_in_a_folder_of_files_is_found_beside_an_mmproj(tmp_path):
    assert gguf_of(tmp_path) == tmp_path
    first, second = (f"m-Q4_K_M-0000{part}-of-00002.gguf" for part in (1, 2))
    for name in ("mmproj-BF16.gguf", first, second):
        (tmp_path / name).write_bytes(b"GGUF\3\0\0\0")
    assert gguf_of(tmp_path) == tmp_path / first
    assert gguf_of(tmp_path / "mmproj-BF16.gguf") == tmp_path / "mmproj-BF16.gguf"
    (tmp_path / "m-Q8_0.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(UserError, match=f"{first}, m-Q8_0.gguf: name one"):
        gguf_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert gguf_of(tmp_path) == tmp_path
