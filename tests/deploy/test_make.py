"""What `make` asks before it installs anything."""

import os
import shutil
import stat
import subprocess
import sys

import pytest

from tests.docs_site.pages import ROOT

OLD = """#!/bin/sh
case $2 in *print*) echo 3.10 ;; *) exit 1 ;; esac
"""


@pytest.fixture
def old_python(tmp_path):
    """A Python that says it is 3.10."""
    path = tmp_path / "python3"
    path.write_text(OLD)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def find(*pythons):
    command = ["sh", str(ROOT / "deploy" / "find_python.sh"), "demo", *map(str, pythons)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_old_python_is_one_sentence(old_python):
    done = find(old_python)
    assert (done.returncode, done.stdout) == (2, "")
    sentence = f"MoLink needs Python 3.11 or newer; this is 3.10 ({old_python}): "
    assert done.stderr.startswith(sentence) and "then make demo PYTHON=python3" in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_that_is_new_enough_is_taken_behind_an_old_one(old_python):
    assert find("no-such-python", old_python, sys.executable).stdout.strip() == sys.executable


def test_no_python_at_all_is_told_so():
    assert "there is none here" in find("no-such-python").stderr


def test_make_stops_before_it_makes_anything(old_python, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "find_python.sh", tmp_path / "deploy")
    done = subprocess.run(
        ["make", "demo", f"PYTHON={old_python}"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "MoLink needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()
