"""What is kept of links, and its file: read, merged, replaced, and never in the way."""

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.coordinator.ring import link_memory
from molink.coordinator.ring.link_memory import (
    AGE_S_MAX,
    ENTRIES_MAX,
    FILE_BYTES_MAX,
    START_MBPS_MAX,
    KnownLink,
    KnownLinks,
    LinkMemoryFile,
    keep_up_to_date,
)
from molink.errors import FrameError
from molink.tasks import background_tasks
from molink_scheduler.link.facts import LinkMemory

NOW = 2e9

SOME = KnownLinks({"a -> b": KnownLink(20.0, 60.0, NOW)})


def test_a_link_is_known_by_where_it_leads_from_and_to():
    assert SOME.memory("a", "b") == LinkMemory(2.5e6, 0.06)
    assert SOME.memory("b", "a") is None


@pytest.mark.parametrize("over_mbps, remembered", [(0, True), (1, False)])
def test_a_fast_link_starts_as_if_never_met(over_mbps, remembered):
    known = KnownLinks({"a -> b": KnownLink(START_MBPS_MAX + over_mbps, 1.0, NOW)})
    assert (known.memory("a", "b") is not None) is remembered


def test_what_json_holds_is_what_was_kept():
    assert KnownLinks.from_fields(json.loads(json.dumps(SOME.fields()))) == SOME


@pytest.mark.parametrize("age_s, known", [(0, 1), (AGE_S_MAX, 1), (AGE_S_MAX + 1, 0), (-1, 0)])
def test_what_is_too_old_or_of_the_future_is_not_used(age_s, known):
    assert len(SOME.fresh(NOW + age_s).links) == known


def test_the_newest_word_on_a_link_stands():
    later = KnownLink(5.0, 40.0, NOW + 9)
    updated = SOME.updated([("a", "b", later), ("b", "a", later)], NOW + 9)
    assert updated.links == {"a -> b": later, "b -> a": later}


def test_the_oldest_leave_when_there_are_too_many():
    seen = [(f"{n}", "x", KnownLink(1.0, 1.0, NOW + 1 + n)) for n in range(ENTRIES_MAX)]
    known = SOME.updated(seen, NOW + ENTRIES_MAX)
    assert len(known.links) == ENTRIES_MAX
    assert known.memory("a", "b") is None and known.memory("0", "x") is not None


GOOD = {"rate_mbps": 1, "rtt_ms": 1.5, "when": 3}


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"a -> b": None},
        {"a -> b": {}},
        {"a -> b": {**GOOD, "more": 1}},
        *({"a -> b": {**GOOD, "rate_mbps": bad}} for bad in (0, -1, 1e9, "1", True, None)),
        {"a -> b": {**GOOD, "rate_mbps": float("nan")}},
        {"a -> b": {**GOOD, "rtt_ms": float("inf")}},
        {"a -> b": {**GOOD, "when": float("nan")}},
        {"a -> b": {**GOOD, "when": -1}},
    ],
)
def test_values_that_no_link_has_are_refused(fields):
    with pytest.raises(FrameError):
        KnownLinks.from_fields(fields)


NUMBERS = st.floats(allow_nan=True) | st.integers()
ENTRIES = st.dictionaries(
    st.text(max_size=9), st.fixed_dictionaries(dict.fromkeys(GOOD, NUMBERS)), max_size=4
)


@given(ENTRIES)
def test_whatever_is_let_in_a_link_can_start_from(fields):
    try:
        known = KnownLinks.from_fields(fields)
    except FrameError:
        return
    assert all(isinstance(one.memory, LinkMemory) for one in known.links.values())
    assert KnownLinks.from_fields(json.loads(json.dumps(known.fields()))) == known


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
