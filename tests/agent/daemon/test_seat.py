"""How a seat gets into the cluster, what it measures, and where its weights lie."""

import asyncio
from dataclasses import dataclass, field

import pytest

from molink.control.messages.payloads import (
    PathMeasured,
    PathReport,
    ProbeOrder,
    StageWork,
    StepCost,
    WeightsSource,
)
from molink.control.messages.topics import PROFILE, WISH
from molink.errors import JoinRefusedError, UserError
from molink_agent.daemon import admission, shelf
from molink_agent.daemon.router_ports import RouterPorts
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.paths.measure import CoordinatorWay
from tests.agent.daemon.agents import agent_with, membership
from tests.agent.probe.fake_nvml import FakeCard

ORDER = ProbeOrder(round=1, model="m", peers=())


def two_seats(tmp_path):
    agent, _ = agent_with(tmp_path, FakeCard(), FakeCard())
    agent._add_seat()
    return agent


def answering(monkeypatch, *answers):
    """The coordinator's answers to further devices that ask, one after the other."""
    left, asked = list(answers), []

    async def join_seat(pc, pair, name, directory):
        asked.append((pc.answer.weights_token, pair.node_id, name))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(admission, "join_seat", join_seat)
    monkeypatch.setattr(admission, "RETRY_FIRST_S", 0.0)
    return asked


async def test_a_further_seat_joins_by_the_pc_s_token_once_the_coordinator_answers(
    tmp_path, monkeypatch
):
    second = two_seats(tmp_path).seats[1]
    joined = membership("attic (2)", second.node_id)
    asked = answering(monkeypatch, UserError("cannot be reached"), joined)
    assert await second.admission.enter() == joined
    assert await second.admission.enter() == joined
    assert asked == [("t" * 32, second.node_id, "attic (2)")] * 2


@pytest.mark.parametrize("changes", [{}, {"url": "http://other:9"}, {"name": "cellar (2)"}])
async def test_what_was_kept_counts_in_the_same_cluster_under_the_same_name(
    tmp_path, monkeypatch, changes
):
    second = two_seats(tmp_path).seats[1]
    fresh = membership("attic (2)", second.node_id)
    kept = fresh.model_copy(update=changes)
    directory = second.admission.directory
    directory.mkdir(parents=True)
    (directory / "membership.json").write_text(kept.model_dump_json())
    (directory / "membership.json").chmod(0o600)
    asked = answering(monkeypatch, fresh)
    assert await second.admission.enter() == fresh
    assert len(asked) == len(changes)


async def test_a_cluster_that_takes_no_further_devices_still_has_the_first(tmp_path, monkeypatch):
    agent = two_seats(tmp_path)
    answering(monkeypatch, JoinRefusedError("not joined yet"))
    await agent.seats[1].run()
    assert agent.seats[1].refused == "not joined yet"

    async def refuse():
        raise JoinRefusedError("removed")

    agent.first.admission.kept = None
    monkeypatch.setattr(type(agent.first.admission), "enter", lambda self: refuse())
    with pytest.raises(JoinRefusedError, match="removed"):
        await agent.first.run()


async def test_another_device_is_timed_anew(tmp_path, monkeypatch):
    agent = two_seats(tmp_path)
    timed = []

    async def time_steps(self, order, device):
        timed.append(device)
        return StepCost(model="m", decode_fixed_s=1, decode_row_s=0, prefill_row_s=len(timed))

    monkeypatch.setattr(type(agent.pc), "time_steps", time_steps)
    errand = agent.first.errand
    await errand.sit("cuda:0")
    for _ in range(2):
        await errand.take(ORDER)
    await errand._timing
    assert timed == ["cuda:0"] and errand.measured.steps.prefill_row_s == 1
    await errand.sit("cuda:1")
    assert errand.measured.steps is None
    await errand._timing
    assert timed == ["cuda:0", "cuda:1"] and errand.measured.steps.prefill_row_s == 2


@dataclass
class Listener:
    """In place of a connection to the coordinator: what it is told of."""

    heard: list = field(default_factory=list)

    async def publish(self, topic, node_id, message):
        self.heard.append((topic, message))


async def test_a_seat_says_that_it_pauses_before_it_says_that_it_has_no_device(tmp_path):
    second = two_seats(tmp_path).seats[1]
    second.voice.client = Listener()
    await second.say_profile()
    (first, wish), (then, profile) = second.voice.client.heard
    assert (first, wish.wish, then, profile.devices) == (WISH, "pause", PROFILE, ())


def test_the_way_to_another_seat_says_nothing_of_the_line(tmp_path):
    agent = two_seats(tmp_path)
    second, other = agent.seats[1].node_id, "z" * 16
    paths = [
        PathMeasured(to=to, path="direct", rtt_ms=1, rate_mbps=rate)
        for to, rate in ((second, 9000), (other, 20))
    ]
    own = {agent.first.node_id, second}
    agent.pc.measured_ways(PathReport(round=1, paths=paths[:1]), None, own)
    assert agent.pc.measured.upload_mbps == 0
    agent.pc.measured_ways(PathReport(round=1, paths=paths), None, own)
    assert agent.pc.measured.upload_mbps == 20
    agent.pc.measured_ways(PathReport(round=1, paths=()), CoordinatorWay(0.01, 5e6, 0.0), own)
    assert agent.pc.measured.upload_mbps == 40


async def test_seats_fetch_one_after_the_other_and_keep_each_other_s_weights(tmp_path, monkeypatch):
    calls, inside = [], []

    async def ensure_weights(source, layers, directory, limits, progress):
        assert not inside
        inside.append(layers)
        await asyncio.sleep(0)
        inside.clear()
        calls.append((layers, source.token, limits.keep))
        return directory / str(layers.start)

    monkeypatch.setattr(shelf, "ensure_weights", ensure_weights)
    busy = set()
    weights = shelf.Shelf(tmp_path, LimitsFile(tmp_path), busy.__contains__)

    async def get(seat, start):
        source = WeightsSource(model="m", url="http://c/weights")
        work = StageWork(layers=(start, start + 1), device="cpu", dtype="float32", weights=source)
        return await weights.get(seat, f"token of {seat}", work, lambda fraction: None)

    found = await asyncio.gather(get(0, 0), get(1, 1))
    assert found == [str(tmp_path / "weights" / name) for name in ("0", "1")]
    assert calls[1] == (range(1, 2), "token of 1", frozenset())
    busy |= {0, 1}
    await get(1, 2)
    assert calls[2][2] == {tmp_path / "weights" / "0"}


async def test_all_seats_ports_are_wanted_of_one_router():
    ports = RouterPorts(lambda: True)
    wanted = []
    ports.mapper.want = lambda them: wanted.append(sorted(them))
    ports.want("a", [5, 6])
    ports.want("b", [7])
    ports.want("a", [6])
    assert wanted == [[5, 6], [5, 6, 7], [6, 7]]
