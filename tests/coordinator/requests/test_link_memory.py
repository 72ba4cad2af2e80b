"""The file of known links: read, merged, replaced, and never in the way."""

import asyncio
import json
import logging

import pytest

from molink.coordinator.requests import link_memory
from molink.coordinator.requests.known_links import KnownLink, KnownLinks
from molink.coordinator.requests.link_memory import (
    FILE_BYTES_MAX,
    LinkMemoryFile,
    keep_up_to_date,
)
from molink.tasks import background_tasks

NOW = 2e9
SEEN = [("a", "b", KnownLink(20.0, 60.0, NOW))]


@pytest.fixture
def file(tmp_path):
    return LinkMemoryFile(tmp_path / "molink" / "link_memory.json")


def warnings(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_what_is_added_is_read_and_nothing_else_is_left(file, caplog):
    assert file.read(NOW) == KnownLinks()
    file.add(SEEN, NOW)
    file.add([("b", "a", KnownLink(5.0, 60.0, NOW))], NOW)
    assert set(file.read(NOW).links) == {"a -> b", "b -> a"}
    assert json.loads(file.path.read_text())["a -> b"]["rate_mbps"] == 20.0
    assert [one.name for one in file.path.parent.iterdir()] == ["link_memory.json"]
    assert not warnings(caplog)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"a -> b": {"rate_mbps": 1}}',
        b'{"a -> b": {"rate_mbps": 1' + b"0" * 999 + b', "rtt_ms": 1, "when": 1}}',
        b"[" * 100_000,
        b" " * (FILE_BYTES_MAX + 1),
    ],
)
def test_a_file_that_is_none_of_ours_is_warned_of_once_and_replaced(file, caplog, content):
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    assert file.read(NOW) == file.read(NOW) == KnownLinks()
    [warning] = warnings(caplog)
    assert "link_memory.json cannot be read" in warning and "\n" not in warning
    file.add(SEEN, NOW)
    assert set(LinkMemoryFile(file.path).read(NOW).links) == {"a -> b"}


def test_a_file_that_cannot_be_written_is_warned_of_once(tmp_path, caplog):
    (tmp_path / "molink").write_text("a file where a directory should be")
    file = LinkMemoryFile(tmp_path / "molink" / "link_memory.json")
    file.add(SEEN, NOW)
    file.add(SEEN, NOW)
    assert len(warnings(caplog)) == 1


def test_it_is_in_the_users_state_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert LinkMemoryFile.of_user().path == tmp_path / "molink" / "link_memory.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".local" / "state" / "molink" / "link_memory.json"
    assert LinkMemoryFile.of_user().path == path


async def test_it_is_written_while_a_ring_serves_and_at_its_end(file, monkeypatch):
    monkeypatch.setattr(link_memory, "WRITE_PERIOD_S", 0.001)
    monkeypatch.setattr(link_memory.time, "time", lambda: NOW)
    asked, twice_written = 0, asyncio.Event()

    def seen():
        nonlocal asked
        asked += 1
        if asked == 3:
            twice_written.set()
        return [("a", f"{asked}", SEEN[0][2])]

    async with background_tasks() as tasks:
        tasks.create_task(keep_up_to_date(file, seen))
        await asyncio.wait_for(twice_written.wait(), 30)
        assert {"a -> 1", "a -> 2"} <= set(file.read(NOW).links)
    assert f"a -> {asked}" in file.read(NOW).links
