"""The attention kernel gives what attention written out gives, on random ragged batches, and every
span the same bits alone as in company; in Triton's interpreter, which is chosen when Triton is
imported and so has a process of its own."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")

BATCHES = 5
"""`python -m tools.experiments.cards.attention_check --out DIR` does 500."""


def check(tmp_path, *options):
    command = [sys.executable, "-m", "tools.experiments.cards.attention_check"]
    command += ["--out", str(tmp_path), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_random_batches(tmp_path):
    done = check(tmp_path, "--batches", str(BATCHES))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "attention_check.json").read_text())["results"]
    assert [result["dtype"] for result in results] == ["float32", "float16", "bfloat16"] * BATCHES
    assert all(result["same_alone"] for result in results)
