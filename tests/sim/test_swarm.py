"""The swarm holds, is deterministic, and its failures can be replayed by what it prints."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError
from molink_sim.checkers import CHECKERS
from molink_sim.faults import FAULTS
from molink_sim.ring import coordinator
from molink_sim.ring.tail import Tail
from molink_sim.swarm import fault_kinds, replay_command, run_swarm, swarm_scenario
from tests.sweeps import swept

ROOT = Path(__file__).parents[2]
SEEDS = (100, 300)


@pytest.fixture(scope="module", params=swept(SEEDS, of=1))
def seeds(request):
    return request.param


@pytest.fixture(scope="module")
def report(seeds):
    return run_swarm(seeds, 0, tuple(FAULTS))


def test_every_invariant_holds_for_every_seed(report, seeds):
    assert report.failures == []
    assert (report.seeds, len(report.invariants)) == (seeds, len(CHECKERS) + 1)


def test_the_swarm_meets_what_it_is_to_meet(report, seeds):
    assert report.faults_met > 8 * seeds
    assert 0.02 < report.failed_requests / report.requests < 0.2
    systems = {swarm_scenario(seed, ()).system.name for seed in range(seeds)}
    assert systems == {"molink", "vllm", "helix", "paper"}


def test_what_a_fresh_head_is_told_of_fits(monkeypatch):
    """Seed 132: the head had preempted a request and was lost; its successor had no room for it."""
    [found] = run_swarm(1, 132, ("node-loss",)).failures or [None]
    assert found is None
    listed = coordinator.requests_to_resume
    monkeypatch.setattr(coordinator, "requests_to_resume", lambda held, _: listed(held, 1 << 30))
    assert "OutOfBlocks" in run_swarm(1, 132, ("node-loss",)).failures[0].mistake


@pytest.mark.parametrize("seed", [1167, 1749, 2390, 3290, 4292])
def test_faults_of_a_kind_that_overlap_come_to_their_end(seed):
    """Hosts that sleep, connections that are reset: mistakes of the simulator itself."""
    assert run_swarm(1, seed, tuple(FAULTS)).failures == []


def test_fewer_faults_leave_rings_and_requests_as_they_are():
    for seed in range(10):
        everything, nothing = swarm_scenario(seed, tuple(FAULTS)), swarm_scenario(seed, ())
        assert (everything.rings, everything.arrivals) == (nothing.rings, nothing.arrivals)
        assert everything.system == nothing.system and nothing.faults == ()


def test_kinds_are_named_with_commas():
    assert fault_kinds("all") == tuple(FAULTS) and fault_kinds("none") == ()
    assert fault_kinds("late, node-loss") == ("node-loss", "late")
    assert replay_command(7, tuple(FAULTS)).endswith("--first-seed 7 --faults all")
    assert replay_command(7, ()).endswith("--faults none")
    with pytest.raises(UserError, match="node-loss, suspended, link-cut"):
        fault_kinds("earthquake")


def swarm(*options):
    return CliRunner().invoke(cli, ["sim", "swarm", *options], catch_exceptions=False)


def test_the_command_says_what_it_ran(tmp_path):
    path = tmp_path / "swarm.json"
    result = swarm("--seeds", "3", "--first-seed", "5", "--json", str(path))
    assert result.exit_code == 0
    assert "Seeds run: 3 (5 to 7)" in result.output and "Failures: 0" in result.output
    assert all(checker.name in result.output for checker in CHECKERS)
    assert json.loads(path.read_text())["seeds"] == 3


def test_unknown_faults_are_the_users_mistake():
    with pytest.raises(UserError, match="earthquake"):
        swarm("--faults", "earthquake")


def test_a_failure_is_fed_again_by_the_command_it_prints(monkeypatch):
    monkeypatch.setattr(Tail, "forget", lambda self, request_id: None)
    first = swarm("--seeds", "4", "--first-seed", "30", "--faults", "link-cut,late")
    assert first.exit_code == 1
    mistake, command = [line.strip() for line in first.output.splitlines()][-2:]
    assert command.startswith("molink sim swarm --seeds 1 --first-seed 3")
    program, *arguments = shlex.split(command)
    again = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert program == "molink" and again.exit_code == 1
    assert mistake in again.output and command in again.output


def test_what_the_core_raises_is_a_failure(monkeypatch):
    def refuse(self, spans):
        raise ValueError("no token today")

    monkeypatch.setattr(Tail, "draw", refuse)
    report = run_swarm(1, 3, ())
    assert ("nothing raises", "ValueError: no token today") in [
        (failure.invariant, failure.mistake) for failure in report.failures
    ]


@pytest.mark.parametrize("hash_seed", swept(["0", "4711"], "4711"))
def test_the_same_seeds_give_the_same_report_in_every_process(tmp_path, hash_seed):
    path, here = tmp_path / "swarm.json", tmp_path / "here.json"
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "sim", "scheduler"))
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
    script = "from molink_sim.cli import main; main()"
    options = ["swarm", "--seeds", "6", "--first-seed", "40", "--json", str(path)]
    command = [sys.executable, "-c", script, *options]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    swarm("--seeds", "6", "--first-seed", "40", "--json", str(here))
    assert path.read_bytes() == here.read_bytes()


def test_progress_is_told_after_each_world():
    told = []
    run_swarm(3, 5, (), lambda: told.append(1))
    assert len(told) == 3
