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


class Installing:
    """What `make demo` asks uv or pip for, where both only write that down."""

    def __init__(self, folder):
        self.bin = folder / "bin"
        self.asked = folder / "asked"
        self.bin.mkdir()
        for name in ("sh", "dirname"):
            (self.bin / name).symlink_to(shutil.which(name))
        self.fake("uname", "case $1 in -s) echo Linux ;; -m) echo x86_64 ;; esac")
        self.fake("python", self.notes("pip"))

    def notes(self, name, fails_at="never"):
        return f'echo {name} "$@" >>{self.asked}\ncase "$*" in *{fails_at}*) exit 1 ;; esac'

    def fake(self, name, script):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, *words):
        done = subprocess.run(
            ["sh", ROOT / "deploy" / "install_runs.sh", self.bin / "python", *words],
            env={"PATH": str(self.bin)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        asked = self.asked.read_text().splitlines()
        return done, [one.replace(str(self.bin), "") for one in asked]


CPU = "https://download.pytorch.org/whl/cpu"


@pytest.fixture
def installing(tmp_path):
    return Installing(tmp_path)


def test_the_demo_is_installed_by_uv_with_a_torch_without_cuda(installing):
    installing.fake("uv", installing.notes("uv"))
    done, asked = installing.run()
    first = "uv pip install --quiet --python /python --constraint constraints.txt"
    assert done.returncode == 0, done.stderr
    assert asked == [
        f"{first} --no-deps --index-url {CPU} torch==2.13.0",
        f"{first} torch==2.13.0 --editable .",
    ]


def test_uv_is_fetched_and_where_that_fails_pip_does_it(installing):
    done, asked = installing.run()
    assert "uv>=0.9" in asked[0], "it would be beside Python"
    installing.asked.unlink()
    installing.fake("python", installing.notes("pip", fails_at="uv"))
    done, asked = installing.run()
    assert done.returncode == 0 and len(asked) == 3
    assert asked[-1].endswith("install --constraint constraints.txt torch==2.13.0 --editable .")


def test_with_a_card_torch_comes_with_cuda(installing):
    installing.fake("uv", installing.notes("uv"))
    installing.fake("nvidia-smi", "")
    assert [one for one in installing.run()[1] if "index" in one] == []
    named = installing.run("https://else.where/simple")[1]
    assert "--index-url https://else.where/simple torch==2.13.0" in named[-2]


def test_an_index_that_does_not_answer_is_no_end(installing):
    installing.fake("uv", installing.notes("uv", fails_at=CPU))
    done, asked = installing.run()
    assert done.returncode == 0 and "does not answer" in done.stdout and len(asked) == 2


def test_packages_that_cannot_be_had_are_the_end(installing):
    installing.fake("uv", installing.notes("uv", fails_at="editable"))
    assert installing.run()[0].returncode != 0
