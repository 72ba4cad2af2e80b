"""Where the C kernels are compiled to."""

import pytest

from molink.executor.cpu.native_kernel import FOLDER_VARIABLE, native_library


@pytest.mark.skipif(native_library() is None, reason="no AVX512-BF16 or no C compiler here")
def test_they_are_compiled_where_a_service_may_write(tmp_path, monkeypatch):
    read_only = tmp_path / "file"
    read_only.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only))
    assert native_library.__wrapped__() is None
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    assert native_library.__wrapped__() is not None
    assert [path.suffix for path in (tmp_path / "own").iterdir()] == [".so"]
