"""A whole `molink serve` but for its stages' processes: broker, hub, local nodes, ring."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest

from molink.config.ring_hosts import RingHosts
from molink.config.serve_settings import ServeSettings
from molink.control.broker import broker as broker_module
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.messages.payloads import NodeState
from molink.coordinator.local import control as control_module
from molink.coordinator.local import local_node
from molink.coordinator.local.control import LocalControl
from molink.coordinator.local.fixed_plan import RingPlan, fixed_plan
from molink.coordinator.local.local_report import local_nodes_report
from molink.coordinator.local.local_ring import EPOCH, LocalRing
from molink.coordinator.rings.agent_ring import JoinTerms
from molink.errors import StageError, UserError
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink_scheduler.link.facts import LinkReport
from tests.coordinator.local.test_fixed_plan import model
from tests.node.fake_stage import PORT, REQUESTS_PORT, FakeHandle

TERMS = JoinTerms(None, None, "molink", "k" * 40, ("127.0.0.1:9",), "sampled", "", upload_mbps=8)
PACKING = PackingHealth("raw", 0, 0, 0.0)
LINK = LinkReport("next", 1, 700, 0, 0, 0, 0, 4096, 20.0, 60.0, 0.0, 0, False, 0)
HEALTH = StageHealth(
    *(7, 1.5, 0.5, 3, None, 2, 0, PACKING, PACKING, 0, None, None, 0.1, 0.2, (LINK,))
)


class Stages:
    """Instead of processes: by name, those that were started; `troubles` fail to load."""

    def __init__(self):
        self.handles, self.troubles = {}, {}

    async def start(self, name, load, command=()):
        handle = FakeHandle(name, load, self.troubles.get(name), pid=1000 + len(self.handles))
        self.handles[name] = handle
        return handle


@pytest.fixture
def stages(monkeypatch):
    made = Stages()
    monkeypatch.setattr(local_node.StageHandle, "start", made.start)
    return made


@pytest.fixture(params=["mosquitto", "embedded"])
def broker_kind(request, monkeypatch):
    if request.param == "embedded":
        monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    elif broker_module.find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    return request.param


def plan_of(nodes, **settings) -> RingPlan:
    return fixed_plan(ServeSettings(model="/m", nodes=nodes, **settings), "/m", model(6))


@asynccontextmanager
async def ring_of(plan, progress=None):
    async with (
        LocalControl.start(plan) as control,
        LocalRing.start(control, plan, TERMS, progress or (lambda stage, fraction: None)) as ring,
    ):
        yield ring


async def test_a_ring_is_assigned_loaded_joined_and_reported(stages, broker_kind):
    seen = []
    plan = plan_of(3)
    async with ring_of(plan, lambda *news: seen.append(news)) as ring:
        tail = stages.handles["stage 2"].joined
        head = stages.handles["stage 0"].joined
        assert (head.epoch, head.kv_tokens_capacity) == (EPOCH, 64)
        assert head.next_address == tail.next_address == f"tcp://127.0.0.1:{PORT}"
        assert (head.coordinator_address, tail.coordinator_address) == (None, "tcp://127.0.0.1:9")
        assert ring.head_address == f"tcp://127.0.0.1:{REQUESTS_PORT}"
        assert (ring.facts.epoch, ring.facts.upload_mbps, ring.facts.emulated) == (EPOCH, 8, None)
        assert [stage.name for stage in ring.stages] == ["stage 0", "stage 1", "stage 2"]
        assert sorted(stage.pid for stage in ring.stages) == [1000, 1001, 1002]
        assert {(stage, 0.5) for stage in range(3)} <= set(seen), "loading is all of the way"
        stages.handles["stage 1"].tell_health(HEALTH)
        async with asyncio.timeout(5):
            assert await ring.stages[1].next_health() == HEALTH
        second = local_nodes_report(ring, tokens_told=10, serving_s=5.0)[1]
        assert (second["name"], second["state"]) == ("stage 1", NodeState.SERVING)
        assert (second["layers"], second["device"]) == ([2, 4], "cpu")
        assert second["contribution"] == {"uptime_s": 5, "token_layers": 20, "bytes_sent": 700}
    assert all(handle.child.ended.is_set() for handle in stages.handles.values())


async def test_a_stage_that_dies_ends_the_ring_in_its_own_words(stages, broker_kind):
    async with ring_of(plan_of(2)) as ring:
        watching = asyncio.create_task(ring.watch())
        stages.handles["stage 1"].child.ended.set()
        with pytest.raises(StageError, match=r"^stage 1 \(pid 100\d\) ended unexpectedly"):
            async with asyncio.timeout(5):
                await watching


@pytest.mark.parametrize(
    "trouble, says",
    [
        (UserError("There is no device cuda:7."), "^There is no device"),
        (StageError("Memory ran out."), "^stage 1: Memory ran out"),
    ],
)
async def test_a_stage_that_cannot_load_says_whose_fault_it_is(stages, trouble, says):
    stages.troubles["stage 1"] = trouble
    with pytest.raises(type(trouble), match=says):
        async with asyncio.timeout(10), ring_of(plan_of(2)):
            pass
    assert all(handle.child.ended.is_set() for handle in stages.handles.values())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_ring_outlives_its_broker(stages, monkeypatch, how):
    """Mosquitto is ended, with last wills or without, and started again; what its nodes say
    afterwards is heard."""
    if broker_module.find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    monkeypatch.setattr("molink.control.client.RECONNECT_FIRST_S", 0.05)
    monkeypatch.setattr("molink.control.connection._TIMEOUT_S", 0.5)
    async with ring_of(plan_of(1)) as ring:
        watching = asyncio.create_task(ring.watch())
        broker = ring.control.hub.broker
        os.kill(broker.process_id, how)
        async with asyncio.timeout(10):
            while ring.stages[0].health != HEALTH:
                stages.handles["stage 0"].tell_health(HEALTH)
                await asyncio.wait({watching}, timeout=0.05)
                assert not watching.done()
        watching.cancel()


async def test_nothing_is_left_of_the_control_plane(stages, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    children = set(psutil.Process().children())
    async with LocalControl.start(plan_of(1)) as control:
        [folder] = tmp_path.iterdir()
        assert (folder / "registry.db").exists()
        assert [node.is_here for node in control.members] == [True]
    assert not list(tmp_path.iterdir())
    assert set(psutil.Process().children()) <= children


async def test_a_mosquitto_that_does_not_start_is_done_without(stages, monkeypatch, caplog):
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: "/bin/false")
    async with LocalControl.start(plan_of(1)) as control:
        assert isinstance(control.hub.broker, EmbeddedBroker)
    assert "inside this process instead" in caplog.text


async def test_without_a_temporary_folder_the_operator_is_told(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(UserError, match="TMPDIR"):
        async with LocalControl.start(plan_of(1)):
            pass


async def test_what_ends_the_control_plane_ends_who_waits_for_it(stages, monkeypatch):
    async def broken(self):
        raise ZeroDivisionError

    monkeypatch.setattr(control_module.LocalNode, "_beat", broken)
    with pytest.raises(control_module.ControlError, match="ZeroDivisionError"):
        async with asyncio.timeout(10), LocalControl.start(plan_of(1)) as control:
            await control.unless_lost(asyncio.Event().wait())


async def test_a_ring_of_one_is_led_to_where_its_stage_listens(stages):
    hosts = RingHosts.from_text('[[stage]]\naddress = "127.0.0.2"\n', "here")
    async with ring_of(replace(plan_of(1), hosts=hosts)) as ring:
        assert stages.handles["stage 0"].joined.next_address == f"tcp://127.0.0.2:{PORT}"
        assert ring.head_address == f"tcp://127.0.0.2:{REQUESTS_PORT}"
