"""The fused kernels give what their operators are written out to be, in Triton's interpreter, which
is chosen when Triton is imported and so has a process of its own."""

import json
import subprocess
import sys

import pytest

from tools.experiments.cards.fused_check import CHECKS

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")

LIMITS = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}
"""The interpreter rounds fp32 to bf16 towards zero, where a card rounds to nearest."""

KERNELS = {"norm_rows", "turn_and_store", "multiply_experts", "gate_rows"}


@pytest.fixture(scope="module")
def found():
    command = [sys.executable, "-m", "tests.engine.kernels.cuda.interpreted_fused"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("operator", CHECKS)
@pytest.mark.parametrize("dtype", LIMITS)
def test_kernels_give_what_torch_gives(operator, dtype, found):
    assert found[0][f"{operator} {dtype}"] <= LIMITS[dtype]


def test_stages_compute_what_the_model_does(found):
    """With every kernel, in every layer of every step."""
    _, difference, launches = found
    assert difference < 1e-4
    assert launches.keys() == KERNELS and min(launches.values()) >= 12
