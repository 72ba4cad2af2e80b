"""What a process may take once its memory is limited: the kernel holds it."""

import subprocess
import sys

import pytest

from molink.engine.device.memory_limit import WORKSPACE_BYTES

MB = 2**20
LIMITED = """
import torch
from molink.engine.device.memory_limit import limit_memory
limit_memory("cpu", {lent})
try:
    held = torch.zeros({wanted}, dtype=torch.uint8)
    print("held")
except (RuntimeError, MemoryError) as error:
    print("refused")
"""


def outcome(lent: int, wanted: int) -> str:
    command = [sys.executable, "-c", LIMITED.format(lent=lent, wanted=wanted)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_beyond_what_is_lent_an_allocation_fails():
    assert outcome(64 * MB, 64 * MB) == "held"
    assert outcome(64 * MB, WORKSPACE_BYTES + 128 * MB) == "refused"
