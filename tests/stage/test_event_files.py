"""A stage's event log reaches the disk, within bounds and for its user alone."""

import logging

import pytest

from molink.stage import event_files
from molink.stage.event_files import EventFiles
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.recording import event_log
from molink_scheduler.recording.event_log import EventLog, RecordedCore
from molink_scheduler.request import ModelLimits
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from molink_sim.replay import replay


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "molink" / "failed-stages"


def recorded(log: EventLog) -> RecordedCore:
    book = StageBook(BlockTable(KvLedger(64)), ModelLimits(100, 100))
    return RecordedCore.begin(StageCore(StageQueue.for_steps_of(64, book), True), log, 0.0)


def test_a_stream_can_be_replayed_at_any_time(tmp_path):
    files = EventFiles(EventLog(is_streamed=True), "layers 0-4", tmp_path / "events.0")
    core = recorded(files.events)
    for number in range(5):
        core.next_step(1e6, float(number))
        files.write_new()
        found = replay((tmp_path / "events.0").read_text().splitlines())
        assert found.calls_count == number + 1 and found.difference is None
    assert (tmp_path / "events.0").stat().st_mode & 0o777 == 0o600


def test_a_stream_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(event_files, "STREAM_BYTES_MAX", 4000)
    monkeypatch.setattr(event_log, "KEPT_CALLS_MAX", 20)
    files = EventFiles(EventLog(is_streamed=True), "layers 0-4", tmp_path / "events.0")
    core = recorded(files.events)
    for number in range(1000):
        core.next_step(1e6, 0.001 * number)
        files.write_new()
    paths = sorted(tmp_path.glob("events*"))
    assert [path.name for path in paths] == ["events.0", "events.0.old"]
    for path in paths:
        assert path.stat().st_size < 10_000
        assert replay(path.read_text().splitlines()).difference is None


def test_without_a_path_nothing_is_streamed(tmp_path):
    files = EventFiles(EventLog(), "layers 0-4")
    recorded(files.events).next_step(1e6, 0.0)
    files.write_new()
    assert not list(tmp_path.glob("events*"))


def test_a_disk_that_refuses_ends_the_stream(tmp_path, caplog):
    files = EventFiles(EventLog(is_streamed=True), "layers 0-4", tmp_path / "none" / "events.0")
    core = recorded(files.events)
    for number in range(3):
        core.next_step(1e6, float(number))
        files.write_new()
    assert len(caplog.records) == 1 and "stops its event log" in caplog.text
    assert not list(files.events.take_lines()), "nothing is kept for it"


def test_a_failure_leaves_the_last_minute_and_says_where(state, caplog):
    files = EventFiles(EventLog(), "layers 0-4")
    recorded(files.events).next_step(1e6, 0.0)
    with caplog.at_level(logging.ERROR):
        files.write_failure(RuntimeError("no more memory"))
    [path] = state.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(path) in caplog.text
    found = replay(path.read_text().splitlines())
    assert found.failure == "RuntimeError: no more memory" and found.calls_count == 1


def test_only_the_last_failures_are_kept(state, monkeypatch):
    files = EventFiles(EventLog(), "layers 0-4")
    recorded(files.events)
    for pid in range(20):
        monkeypatch.setattr(event_files.os, "getpid", lambda pid=pid: pid)
        files.write_failure(RuntimeError("again"))
    assert len(list(state.iterdir())) == event_files.FAILURES_KEPT


def test_a_user_without_a_home_has_no_log_of_a_failure(monkeypatch, caplog):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(event_files, "state_dir", lambda: (_ for _ in ()).throw(RuntimeError("no")))
    files = EventFiles(EventLog(), "layers 0-4")
    recorded(files.events)
    files.write_failure(RuntimeError("no more memory"))
    assert "cannot leave its event log" in caplog.text
