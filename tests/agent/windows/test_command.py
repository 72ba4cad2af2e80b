"""What install.ps1 calls, with a bare Python as a fresh distribution has it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from molink_agent.windows.__main__ import main

ROOT = Path(__file__).parents[3]
SID = "S-1-5-21-1-2-3-1001"


def plan(wslconfig: Path, **changed: str) -> list[str]:
    facts = {
        "--build": "22631",
        "--virtualisation": "on",
        "--wsl-version": "2.3.26.0",
        "--distribution": "Debian",
        "--distribution-wsl": "2",
        "--wslconfig": str(wslconfig),
        "--task-registered": "no",
    }
    facts.update({f"--{name.replace('_', '-')}": value for name, value in changed.items()})
    return ["plan", *(word for pair in facts.items() for word in pair)]


def test_it_needs_nothing_but_python_and_the_sources(tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "agent")])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "molink_agent.windows", *plan(tmp_path / ".wslconfig")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "HOME": str(tmp_path)},
        check=True,
    )
    doings = [step["do"] for step in json.loads(done.stdout)["steps"]]
    assert doings[:2] == ["set-mirrored", "restart-wsl"]
    assert doings[-2:] == ["install-agent", "register-task"]


def test_the_plan_looks_into_the_file(tmp_path, capsys):
    file = tmp_path / ".wslconfig"
    file.write_text("[wsl2]\nnetworkingMode=mirrored\n")
    assert main(plan(file)) == 0
    assert "set-mirrored" not in capsys.readouterr().out


def test_a_wsl_that_cannot_tell_its_version_is_old(tmp_path, capsys):
    assert main(plan(tmp_path / ".wslconfig", wsl_version="unknown")) == 0
    assert "update-wsl" in capsys.readouterr().out


def test_the_file_is_changed_once_and_put_back(tmp_path, capsys):
    file = tmp_path / ".wslconfig"
    file.write_bytes(b"[wsl2]\nmemory=8GB\n")
    for arguments, answer in (([], "changed"), ([], "no change"), (["--remove"], "changed")):
        assert main(["wslconfig", str(file), *arguments]) == 0
        assert answer in capsys.readouterr().out
    assert file.read_bytes() == b"[wsl2]\nmemory=8GB\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"x" * (2**20 + 1), "that is no .wslconfig"), (b"\xff\xfea", "is damaged")],
)
def test_a_file_that_is_something_else_is_left_alone(tmp_path, capsys, content, sentence):
    file = tmp_path / ".wslconfig"
    file.write_bytes(content)
    assert main(["wslconfig", str(file)]) == 2
    assert sentence in capsys.readouterr().err
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_written_is_said(tmp_path, capsys):
    assert main(["wslconfig", str(tmp_path / "none" / ".wslconfig")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_task_runs_the_link_that_the_installer_makes(capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert main(["task-xml", "--user-sid", SID, "--distribution", "Debian"]) == 0
    xml = capsys.readouterr().out
    assert "--exec /home/ada/.local/bin/molink agent run" in xml
    ElementTree.fromstring(xml)
