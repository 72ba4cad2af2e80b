"""`molink dashboard` before it has a screen: what it refuses, and its lines without a terminal."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from molink.cli.dashboard import shows_utf8
from molink.cli.main import cli
from molink.dashboard.recording import DashboardRecorder
from tests.dashboard.scenes import slowed, steady


def said(*arguments):
    result = CliRunner().invoke(cli, ["dashboard", *arguments])
    return f"{result.output}{result.exception or ''}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--url", "http://127.0.0.1:9"), "cannot reach http://127.0.0.1:9"),
        (("--url", "ftp://x"), "is no server's address"),
        (("--url", "http://127.0.0.1:9/?key=molink-secret"), "holds no key"),
        (("--url", "http://user:secret@127.0.0.1:9"), "holds no key"),
        (("--key", "a\nb"), "the key has characters that no key has"),
        (("--replay", "none", "--record", "x"), "leave out --record"),
        (("--replay", "none"), "cannot read none"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, says):
    told = said(*arguments)
    assert says in told and "secret" not in told.replace(" ".join(arguments), "")


def test_a_recording_is_told_in_lines_without_a_terminal(tmp_path):
    with DashboardRecorder(tmp_path / "a", "http://x") as recorder:
        for one in [*steady(), *slowed()]:
            recorder.take(one)
    lines = said("--replay", str(tmp_path / "a")).splitlines()
    assert "serving demo on 1 ring;" in lines[0]
    assert "! ben is 3.0 times as slow as it was" in lines[-1] or "serving" in lines[-1]
    assert any("! ben is 3.0 times as slow" in line for line in lines)


def test_a_failure_ends_with_two_and_no_traceback():
    line = [sys.executable, "-m", "molink.cli.main", "dashboard", "--url", "http://127.0.0.1:9"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("molink: cannot reach") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "utf8"),
    [
        ({}, True),
        ({"LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "C.utf8"}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LC_CTYPE": "en_US.ISO-8859-1", "LANG": "en_US.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "en_US"}, True),
    ],
)
def test_utf8_is_the_locales(environment, utf8):
    assert shows_utf8(environment) is utf8
