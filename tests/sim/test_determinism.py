"""The same seed gives the same bytes, in this process and in any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import swept

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from molink_sim.even_ring import even_ring
from molink_sim.report.summary import summary, to_json
from molink_sim.scenario import LinkChange, LinkSpec, Scenario
from molink_sim.simulate import simulate
from molink_sim.systems import system_named
from molink_sim.workload import generate

changes = (LinkChange(20, 30, 0.05), LinkChange(40, 0, 0.05), LinkChange(45, 80, 0.03))
link = LinkSpec(100, 0.03, jitter_s=0.01, loss=0.02, changes=changes)
ring = even_ring("qwen-7b", "rtx4090", 3, link, kv_tokens_max=6000)
for name in ("molink", "paper", "vllm"):
    system = system_named(name)
    arrivals = generate(0.6, 60, int(sys.argv[1]))
    scenario = Scenario((ring, ring), arrivals, system, duration_s=60, seed=int(sys.argv[1]))
    outcome = simulate(scenario)
    sys.stdout.write(to_json(summary(outcome)))
    sys.stdout.write(repr([request.token_times_s for request in outcome.requests]))
"""


def output(seed: int, hash_seed: str) -> bytes:
    path = os.pathsep.join(str(ROOT / part) for part in (".", "sim", "scheduler"))
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", SCRIPT, str(seed)]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def reference():
    return output(7, "0")


@pytest.mark.parametrize("hash_seed", swept(["1", "4711"], "4711"))
def test_the_same_seed_gives_the_same_bytes_in_every_process(reference, hash_seed):
    assert output(7, hash_seed) == reference


def test_another_seed_gives_another_run(reference):
    assert output(8, "0") != reference
