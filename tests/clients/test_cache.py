"""Clients are installed once, in folders of their own, and named when they cannot be had."""

from contextlib import suppress

import psutil
import pytest

from tools.clients import __main__ as main
from tools.clients import cache
from tools.clients.cache import CACHE_VARIABLE, NotInstalledError, install


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """What would be run; each ends well, unless it holds `broken`."""
    ran = []

    def status(command, _):
        ran.append(command)
        return int(any("broken" in word for word in command)), "no such version"

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(cache, "_status", status)
    return ran


def test_a_client_is_installed_once(commands, tmp_path):
    for _ in range(2):
        found = install("a", "python", ("a==1.5", "b==2"))
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    assert commands[1][-2:] == ["a==1.5", "b==2"]
    assert found.folder == tmp_path / "a-1.5"


def test_another_version_goes_to_another_folder(commands, tmp_path):
    for version in ("1", "2"):
        install("a", "npm", (f"@maker/a@{version}",))
    assert {"a-1", "a-2"} < {path.name for path in tmp_path.iterdir()}
    assert [command[-1] for command in commands] == [commands[0][-1], "@maker/a@1", "@maker/a@2"]


def test_what_was_not_finished_is_begun_anew(commands):
    for _ in range(2):
        with pytest.raises(NotInstalledError, match="no such version"):
            install("a", "python", ("broken==1",))
    assert len(commands) == 4


def test_what_cannot_be_had_is_named_and_no_failure(commands, capsys, monkeypatch):
    broken = main.LIBRARIES[0].__class__("x", ("broken==1",), lambda place: [])
    monkeypatch.setattr(main, "LIBRARIES", (broken,))
    monkeypatch.setattr("sys.argv", ["clients", "x"])
    assert main.main() == 0
    assert capsys.readouterr().out.startswith("not run broken==1")


def test_an_installation_that_takes_too_long_ends_with_its_children(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "INSTALL_S_MAX", 2)
    with pytest.raises(NotInstalledError, match="timed out after 2 s"):
        cache._run(["sh", "-c", "sleep 600 & echo $! > child; wait"], tmp_path)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "child").read_text())).wait(10)
