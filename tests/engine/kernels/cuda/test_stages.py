"""Stages whose attention is the kernel draw the tokens that they draw with torch's: windows,
softcaps and sinks, KV in fp32 and in int8, scattered or not, decode rows beside prompts."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")

CASES = ("gpt_oss:auto", "gemma2:int8")
"""Each an architecture and the format of its KV; one process for all."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("models"))
    command = [sys.executable, "-m", "tests.engine.kernels.cuda.interpreted_stages", folder]
    done = subprocess.run([*command, *CASES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_torch(case, found):
    by_torch, by_kernel, calls, fallbacks, recorded_rows_agree = found[case]
    assert by_kernel == by_torch
    assert calls > 40 and fallbacks == [None, None]
    assert recorded_rows_agree
