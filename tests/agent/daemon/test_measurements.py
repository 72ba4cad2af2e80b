"""What a node measures, and when it measures again."""

import asyncio
import json

import pytest

from molink.checkpoint.model_config import KNOWN_CONFIGS
from molink.control.messages.payloads import FormatCost, ProbeOrder, StepCost
from molink.errors import StageError
from molink_agent.daemon import step_times
from molink_agent.daemon.measurements import ProbeRunner
from molink_agent.daemon.measuring_budget import TIMING_BUDGET, MeasuringBudget
from molink_agent.daemon.step_times import KeptStepTimes, _layers_that_fit
from molink_agent.limits.assignment_check import Loan
from molink_scheduler.units import GB
from tests.agent.daemon.agents import agent_with_two_nodes

ORDER = ProbeOrder(round=1, model="m", peers=())
PLAIN = FormatCost(format="plain", read_s=0.1, row_s=0.01)


async def formats_of(self, loan, budget):
    return (PLAIN,)


async def test_another_device_is_timed_anew(tmp_path, monkeypatch):
    agent = agent_with_two_nodes(tmp_path)
    timed = []

    async def of(self, order, loan, budget):
        timed.append(loan.device)
        return StepCost(model="m", decode_fixed_s=1, decode_row_s=0, prefill_row_s=len(timed))

    monkeypatch.setattr(KeptStepTimes, "of", of)
    monkeypatch.setattr(KeptStepTimes, "of_formats", formats_of)
    node, reports = agent.first, agent.first.reports
    await node.set_device("cuda:0")
    for _ in range(2):
        await node.probes.take(ORDER)
    await node.probes._timing
    assert timed == ["cuda:0"] and reports.measured.steps.prefill_row_s == 1
    assert reports.measured.formats == (PLAIN,)
    await node.set_device("cuda:1")
    assert reports.measured.steps is None and reports.measured.formats == ()
    await node.probes._timing
    assert timed == ["cuda:0", "cuda:1"] and reports.measured.steps.prefill_row_s == 2


async def test_while_the_owner_pauses_nothing_is_measured_and_later_what_was_asked_for(
    tmp_path, monkeypatch
):
    agent = agent_with_two_nodes(tmp_path)
    timed, measured, going = [], [], asyncio.Event()

    async def of(self, order, loan, budget):
        timed.append(loan.device)
        await going.wait()
        return StepCost(model="m", decode_fixed_s=1, decode_row_s=0, prefill_row_s=1)

    async def measure_paths(self, order):
        measured.append(order.round)

    monkeypatch.setattr(KeptStepTimes, "of", of)
    monkeypatch.setattr(KeptStepTimes, "of_formats", formats_of)
    monkeypatch.setattr(ProbeRunner, "_measure_paths", measure_paths)
    node, probes = agent.first, agent.first.probes
    await node.set_device("cuda:0")
    agent.owner.pause()
    await agent.owner.evaluate(frozenset())
    order = ProbeOrder(round=1, model="m", peers=(), coordinator_token="t")
    await probes.take(order)
    await probes.refresh()
    assert probes._timing is None and not timed and not measured
    agent.owner.resume()
    await agent.owner.evaluate(frozenset())
    await probes.refresh()
    await asyncio.wait_for(until(lambda: timed and measured), 5)
    agent.owner.pause()
    await agent.owner.evaluate(frozenset())
    await probes.refresh()
    assert probes._timing.cancelled() or probes._timing.done()
    agent.owner.resume()
    await agent.owner.evaluate(frozenset())
    going.set()
    await probes.refresh()
    await probes._timing
    assert timed == ["cuda:0", "cuda:0"] and measured == [1]
    assert node.reports.measured.steps is not None


async def until(condition):
    while not condition():  # noqa: ASYNC110 - what it waits for are other tasks
        await asyncio.sleep(0)


def test_as_many_layers_are_timed_as_fit(tmp_path):
    config = {**KNOWN_CONFIGS["llama-3-8b"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for memory, layers in ((2 * GB, 2), (0.6 * GB, 1)):
        assert _layers_that_fit(tmp_path, Loan("cpu", 1, int(memory))) == layers
    with pytest.raises(StageError, match=r"lent are 0\.30 GB"):
        _layers_that_fit(tmp_path, Loan("cpu", 1, int(0.3 * GB)))


async def test_formats_are_measured_once_for_a_device_whatever_the_model(tmp_path, monkeypatch):
    probed = []

    async def printed(loan, module, *arguments):
        probed.append((module, loan.device))
        return {"plain": {"read_s": 0.1, "row_s": 0.01}}

    monkeypatch.setattr(step_times, "_printed", printed)
    times, budget = KeptStepTimes(tmp_path), MeasuringBudget(TIMING_BUDGET, lambda: 0.0)
    for _ in range(2):
        assert await times.of_formats(Loan("cpu", 1, GB), budget) == (PLAIN,)
    assert await KeptStepTimes(tmp_path).of_formats(Loan("cpu", 1, GB), budget) == (PLAIN,)
    assert probed == [(step_times.FORMAT_PROBE_MODULE, "cpu")]
    await times.of_formats(Loan("cuda:0", 1, GB), budget)
    assert len(probed) == 2


async def test_formats_that_came_out_impossible_are_refused(tmp_path, monkeypatch):
    async def printed(loan, module, *arguments):
        return {"plain": {"read_s": -1.0, "row_s": 0.01}}

    monkeypatch.setattr(step_times, "_printed", printed)
    with pytest.raises(StageError, match="measure again"):
        await KeptStepTimes(tmp_path).of_formats(
            Loan("cpu", 1, GB), MeasuringBudget(TIMING_BUDGET, lambda: 0.0)
        )
