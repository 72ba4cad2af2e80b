"""What a node measures, and when it measures again."""

from molink.control.messages.payloads import ProbeOrder, StepCost
from molink_agent.daemon.measurements import StepTimes
from tests.agent.daemon.agents import agent_with_two_nodes

ORDER = ProbeOrder(round=1, model="m", peers=())


async def test_another_device_is_timed_anew(tmp_path, monkeypatch):
    agent = agent_with_two_nodes(tmp_path)
    timed = []

    async def of(self, order, device, threads):
        timed.append(device)
        return StepCost(model="m", decode_fixed_s=1, decode_row_s=0, prefill_row_s=len(timed))

    monkeypatch.setattr(StepTimes, "of", of)
    node, reports = agent.first, agent.first.reports
    await node.set_device("cuda:0")
    for _ in range(2):
        await node.probes.take(ORDER)
    await node.probes._timing
    assert timed == ["cuda:0"] and reports.measured.steps.prefill_row_s == 1
    await node.set_device("cuda:1")
    assert reports.measured.steps is None
    await node.probes._timing
    assert timed == ["cuda:0", "cuda:1"] and reports.measured.steps.prefill_row_s == 2
