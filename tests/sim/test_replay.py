"""A log of a stage, played again: the same decisions, the same objection, the same failure."""

import json

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_scheduler.head.micro_batches import MicroBatches
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.recording import event_log
from molink_scheduler.recording.event_log import EventLog, RecordedCore
from molink_sim.cli import main
from molink_sim.replay import replay
from molink_sim.scenario import RequestArrival, Scenario
from molink_sim.simulate import World


@pytest.fixture
def recorded_logs(plain_ring):
    """Runs a small crowded ring whose stages are recorded; each stage's log."""

    def run(seed: int = 0) -> list[list[str]]:
        arrivals = [RequestArrival(0.1 * number, 20 + seed + number, 12) for number in range(8)]
        ring = plain_ring(3, 50, 0.01, kv_tokens=160, row_bytes=512)
        world = World(Scenario((ring,), arrivals, duration_s=5, drain_s=100))
        logs = []
        for stage in world.rings[0].stages:
            log = EventLog(is_streamed=True)
            stage.core = RecordedCore.begin(stage.core, log, 0.0)
            logs.append(log)
        world.run()
        return [list(log.take_lines()) for log in logs]

    return run


@pytest.mark.parametrize("stage", range(3))
def test_segments_of_a_long_log_lead_to_one_another(recorded_logs, monkeypatch, stage):
    monkeypatch.setattr(event_log, "KEPT_CALLS_MAX", 100)
    lines = recorded_logs()[stage]
    assert sum(line.startswith("{") for line in lines) > 3
    assert replay(lines).difference is None


@pytest.mark.parametrize("stage", range(3))
def test_every_decision_of_a_ring_is_made_again(recorded_logs, stage):
    lines = recorded_logs()[stage]
    found = replay(lines)
    assert found.calls_count > 200
    assert found.difference is found.error is found.first_refusal is None


def test_another_decision_is_found_where_it_is_made(recorded_logs, monkeypatch):
    """As of a version that has changed since."""
    lines = recorded_logs()[0]
    monkeypatch.setattr(MicroBatches, "share", lambda self, running_count, ready_count: 1)
    difference = replay(lines).difference
    assert " decided " in difference.what and ", was " in difference.what
    verb, _, logged = json.loads(lines[difference.line - 1])
    assert verb in ("next_step", "computed") and logged
    shorter = replay(lines[: difference.line - 1])
    assert shorter.difference is None, "all calls before decide the same"


def test_a_failure_of_the_core_is_raised_again(recorded_logs, monkeypatch):
    """A mistake of the ledger, in the field and in the core that is played again."""
    grow = KvLedger.grow

    def grow_and_fail(self, request_id, tokens):
        if request_id == 3 and tokens > 30:
            raise RuntimeError("a block is nobody's")
        grow(self, request_id, tokens)

    with monkeypatch.context() as broken:
        broken.setattr(KvLedger, "grow", grow_and_fail)
        log = EventLog()
        with pytest.raises(RuntimeError):
            recorded_in(log, recorded_logs, broken)
        found = replay([*log.lines(), json.dumps({"failed": "RuntimeError: a block is nobody's"})])
    assert "RuntimeError: a block is nobody's" in found.error.what
    assert found.difference is None and found.failure.startswith("RuntimeError")


def recorded_in(log, recorded_logs, monkeypatch):
    """Run the ring with the head's calls in `log`."""
    begin = RecordedCore.begin
    logs = iter([log, EventLog(), EventLog()])
    monkeypatch.setattr(RecordedCore, "begin", lambda core, _, now: begin(core, next(logs), now))
    recorded_logs()


def test_the_first_objection_is_shown(recorded_logs):
    """A message that came twice, as of a broken neighbour."""
    lines = recorded_logs()[1]
    arrived = next(line for line in lines if line.startswith('["received",[{"BatchArrived"'))
    again = json.loads(arrived)[:2]
    found = replay([*lines[: lines.index(arrived) + 1], json.dumps([*again, []])])
    assert "is admitted twice" in found.first_refusal.what
    assert found.refusals_count == 1
    assert "Refuse" in found.difference.what, "the log of the test says that nothing was decided"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["no json"],
        ['["next_step",[0.0,1.0],[]]'],
        ['{"format":99,"at":0,"core":null}'],
        ['{"format":1,"at":0,"core":{"Popen":{}}}'],
        ['{"format":1,"at":0,"core":{"Release":{"request_id":1}}}'],
    ],
)
def test_what_is_no_log_is_refused(lines):
    with pytest.raises(UserError):
        replay(lines)


def test_a_call_that_no_log_holds_is_refused(recorded_logs):
    state = recorded_logs()[1][0]
    for line in ('["__init__",[],[]]', '["computed",[1,0.1,1.0,0.2],[]]', "[]", "3"):
        with pytest.raises(UserError):
            replay([state, line])


def test_the_command_says_what_came_of_it(recorded_logs, tmp_path):
    path = tmp_path / "events"
    lines = recorded_logs()[2]
    path.write_text("\n".join(lines))
    result = CliRunner().invoke(main, ["replay", str(path)])
    assert result.exit_code == 0 and "Every decision is the one of the log." in result.output
    number, computed = next(
        (number, json.loads(line))
        for number, line in enumerate(lines)
        if line.startswith('["computed"')
    )
    computed[2]["SendTokens"][0]["Batch"]["micro_batch"] = 9
    lines[number] = json.dumps(computed)
    path.write_text("\n".join(lines))
    result = CliRunner().invoke(main, ["replay", str(path)])
    assert result.exit_code == 1 and f"Another decision: line {number + 1}" in result.output
    assert CliRunner().invoke(main, ["replay", str(tmp_path / "none")]).exit_code
