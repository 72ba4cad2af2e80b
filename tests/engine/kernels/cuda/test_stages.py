"""Stages whose attention is the kernel draw the tokens that they draw with torch's: windows,
softcaps and sinks, KV in fp32 and in int8, scattered or not, decode rows beside prompts."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")


@pytest.mark.parametrize(("name", "kv_dtype"), [("gpt_oss", "auto"), ("gemma2", "int8")])
def test_tokens_are_those_of_torch(name, kv_dtype, tmp_path):
    command = [sys.executable, "-m", "tests.engine.kernels.cuda.interpreted_stages"]
    command += [name, kv_dtype, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    by_torch, by_kernel, calls, fallbacks, recorded_rows_agree = json.loads(
        done.stdout.splitlines()[-1]
    )
    assert by_kernel == by_torch
    assert calls > 40 and fallbacks == [None, None]
    assert recorded_rows_agree
