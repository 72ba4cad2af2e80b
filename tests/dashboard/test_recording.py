import gzip
import json

import pytest

from molink.dashboard import recording
from molink.dashboard.recording import DashboardRecorder, DashboardRecording, DashboardReplay
from molink.errors import UserError
from tests.dashboard.scenes import START_S, event, history_of, look, slowed, steady


@pytest.fixture(params=["a.jsonl", "a.jsonl.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


def recorded(path, looks):
    with DashboardRecorder(path, "http://x") as recorder:
        for one in looks:
            recorder.take(one)
    return path


def test_what_was_recorded_is_seen_again(path):
    looks = [*steady(), *slowed(), look(22, trouble="gone"), look(23, events=[event(1)])]
    read = DashboardRecording.open(recorded(path, looks))
    assert read.url == "http://x"
    assert [read.observation(at) for at in range(len(looks))] == looks


def test_stepping_to_and_fro_gives_what_was_known_then(path):
    replay = DashboardReplay(DashboardRecording.open(recorded(path, [*steady(), *slowed()])))
    replay.step(19)
    before = replay.history.tokens_per_s()
    replay.step(1)
    assert not replay.is_at_end and replay.history.state.rings[0].stages[1].busy_share == 0.99
    replay.step(-1)
    assert replay.history.tokens_per_s() == before == history_of(*steady()).tokens_per_s()
    replay.step(-100)
    assert (replay.index, replay.pause_s) == (0, 0.5)


@pytest.mark.parametrize(("after_s", "index"), [(-5, 0), (0, 0), (3.2, 6), (99, 30)])
def test_going_to_a_time(path, after_s, index):
    replay = DashboardReplay(DashboardRecording.open(recorded(path, [*steady(), *slowed()])))
    replay.go_to(START_S + after_s)
    assert replay.index == index


@pytest.mark.parametrize("lost", [1, 30, 700])
def test_a_recording_that_was_cut_off_is_good_up_to_there(path, lost):
    recorded(path, steady())
    path.write_bytes(path.read_bytes()[:-lost])
    assert 0 < len(DashboardRecording.open(path).times_s) <= 20


def test_a_file_that_exists_is_not_written_over(path):
    recorded(path, steady(2))
    with pytest.raises(UserError, match="exists: choose another --record"):
        DashboardRecorder(path, "http://x")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "that is no recording"),
        (b"hello\n", "that is no recording"),
        (b'{"molink_recording": 9, "url": ""}\n', "of a newer molink"),
        (b'{"molink_recording": 1, "url": ""}\n', "holds no look"),
        (b'{"molink_recording": 1, "url": ""}\n{"at_s": 1}\n', "no observation"),
        (b'{"molink_recording": 1, "url": ""}\n{"at_s": 1e99, "cluster": {}}\n', "no observation"),
        (b'{"molink_recording": 1, "url": ""}\n' + b"[" * 100_000 + b"\n", "no observation"),
    ],
)
def test_other_files_are_refused(path, content, says):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    with pytest.raises(UserError, match=says):
        DashboardRecording.open(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        DashboardRecording.open(tmp_path / "none")
    with pytest.raises(UserError, match="cannot write"):
        DashboardRecorder(tmp_path / "no folder" / "a", "http://x")


def test_a_recording_has_an_end(path, monkeypatch):
    monkeypatch.setattr(recording, "RECORD_BYTES_MAX", 10_000)
    with DashboardRecorder(path, "http://x") as recorder:
        for one in steady():
            recorder.take(one)
        assert recorder.trouble == "The recording is full and has ended."
    assert 0 < len(DashboardRecording.open(path).times_s) < 20


def test_a_recorded_name_cannot_speak_to_the_terminal(tmp_path):
    path = tmp_path / "a"
    path.write_text(json.dumps({"molink_recording": 1, "url": "\x1b[2J"}) + "\n" + look(0).line())
    path.write_text(path.read_text() + "\n")
    assert DashboardRecording.open(path).url == "\ufffd[2J"
