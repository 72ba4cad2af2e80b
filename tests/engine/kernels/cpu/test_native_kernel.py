"""Where the C kernels are compiled to."""

import os
import tempfile
from pathlib import Path

import pytest

from molink.engine.kernels.cpu.native_kernel import (
    FOLDER_VARIABLE,
    _cache_directories,
    native_library,
)


@pytest.mark.skipif(native_library() is None, reason="no AVX512-BF16 or no C compiler here")
def test_they_are_compiled_where_a_service_may_write(tmp_path, monkeypatch):
    read_only = tmp_path / "file"
    read_only.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only))
    monkeypatch.setattr(tempfile, "tempdir", str(read_only))
    assert native_library.__wrapped__() is None
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    assert native_library.__wrapped__() is not None
    assert [path.suffix for path in (tmp_path / "own").iterdir()] == [".so"]


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_has_a_folder_of_their_own(tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", FOLDER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"molink-kernels-{os.getuid()}"
    assert list(_cache_directories()) == [own]
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert list(_cache_directories()) == [], "others could have put code there"
