"""A whole `molink serve` but for its stages' processes: broker, hub, local nodes, ring."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil
import pytest

from molink.config.link_schedule import LinkSchedule
from molink.config.setting import settings_of
from molink.config.settings import ServeSettings
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.messages.payloads import NodeState
from molink.coordinator.local import local_endpoint, local_node
from molink.coordinator.local import start as local_start
from molink.coordinator.local.start import start_local
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink.errors import StageError, UserError
from molink.report.nodes import ContributionReport
from molink.serving import served_model
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.link.facts import LinkReport
from tests.node.fake_stage import PORT, REQUESTS_PORT, FakeHandle

PACKING = PackingHealth("raw", 0, 0, 0.0)
LINK = LinkReport("next", 1, 700, 0, 0, 0, 0, 4096, 20.0, 60.0, 0.0, 0, False, 0)
HEALTH = StageHealth(
    *(7, 1.5, 0.5, 3, None, 2, 0, PACKING, PACKING, 0, None, None, 0.1, 0.2, (LINK,))
)


class Stages:
    """Instead of processes: by name, those that were started last; `troubles` fail to load."""

    def __init__(self):
        self.handles, self.troubles, self.all = {}, {}, []

    async def start(self, name, load, arguments=()):
        handle = FakeHandle(name, load, self.troubles.get(name), pid=1000 + len(self.all))
        self.handles[name] = handle
        self.all.append(handle)
        return handle


@pytest.fixture
def stages(monkeypatch):
    made = Stages()
    monkeypatch.setattr(local_node.StageHandle, "start", made.start)
    return made


@dataclass
class FakeLinks:
    """Instead of the coordinator's links: there is no head that would answer."""

    port: int = 9
    head: None = None
    connected: list = field(default_factory=list)
    events: asyncio.Queue = field(default_factory=asyncio.Queue)

    async def next_event(self):
        return await self.events.get()

    report = None

    @classmethod
    def bind(cls, host, epoch):
        return cls()

    async def connect(self, address):
        self.connected.append(address)

    async def begin_epoch(self, epoch, address):
        self.connected.append(address)

    def send(self, message):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def no_head_and_no_tokenizer(monkeypatch):
    monkeypatch.setattr(local_endpoint, "RingClientLinks", FakeLinks)
    monkeypatch.setattr(served_model, "load_tokenizer", lambda description: None)


@pytest.fixture
def brokers(monkeypatch):
    """Those that were started."""
    made = []

    class Noted(EmbeddedBroker):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(local_start, "EmbeddedBroker", Noted)
    return made


@asynccontextmanager
async def serving(nodes, **settings):
    """The cluster, once its ring serves."""
    chosen = settings_of(ServeSettings, model="demo", nodes=nodes, **settings)
    async with start_local(chosen) as cluster:
        async with asyncio.timeout(10):
            await cluster.service.until_ready()
        yield cluster


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it happens by itself
            await asyncio.sleep(0.01)


async def test_a_ring_is_assigned_loaded_joined_and_reported(stages):
    async with serving(3, upload_mbps=8) as cluster:
        (ring,) = cluster.rings
        (serving_ring,) = cluster.service.rings
        tail = stages.handles["stage 2"].joined
        head = stages.handles["stage 0"].joined
        assert (head.epoch, head.ring.kv_tokens_capacity) == (ring.epoch, 64)
        assert head.next_address == tail.next_address == f"tcp://127.0.0.1:{PORT}"
        assert (head.coordinator_address, tail.coordinator_address) == (None, "tcp://127.0.0.1:9")
        client = serving_ring.client
        assert client.links.connected == [f"tcp://127.0.0.1:{REQUESTS_PORT}"]
        assert (client.ring.terms.upload_mbps, client.ring.terms.emulated) == (8, None)
        assert client.card.model_len_max == cluster.service.card.model_len_max == 64
        assert [stage.name for stage in ring.stages] == ["stage 0", "stage 1", "stage 2"]
        assert sorted(stage.pid for stage in ring.stages) == [1000, 1001, 1002]
        assert ring.fractions == {0: 1.0, 1: 1.0, 2: 1.0}
        stages.handles["stage 1"].tell_health(HEALTH)
        async with asyncio.timeout(5):
            assert await ring.stages[1].next_health() == HEALTH
        report = cluster.service.cluster()
        second = report.nodes[1]
        assert (second.name, second.state) == ("stage 1", NodeState.SERVING)
        assert (second.layers, second.device) == ((3, 6), "cpu")
        assert isinstance(second.contribution, ContributionReport)
        assert report.relay is None
    assert all(handle.child.ended.is_set() for handle in stages.all)


async def test_a_ring_whose_stage_dies_goes_on_with_the_others(stages):
    async with serving(3) as cluster:
        (ring,) = cluster.rings
        first, epoch = dict(stages.handles), ring.epoch
        first["stage 1"].child.ended.set()
        await until(lambda: ring.epoch > epoch and ring.state is RingState.SERVING)
        assert cluster.rings == [ring] and len(stages.all) == 4, "one stage was loaded"
        assert {name for name in first if stages.handles[name] is not first[name]} == {"stage 1"}
        joined = {name: handle.joined.resume for name, handle in stages.handles.items()}
        assert [joined[f"stage {place}"].fresh for place in range(3)] == [False, True, False]
        assert [joined[f"stage {place}"].next_fresh for place in range(3)] == [True, False, False]
        asked = stages.handles["stage 1"].load.work.kv_tokens
        assert 16 * blocks_for(asked) == 64, "it has room for as much as the ring counts on"


async def test_a_ring_whose_stages_all_die_is_built_anew(stages):
    async with serving(2) as cluster:
        (lost,) = cluster.rings
        for handle in list(stages.handles.values()):
            handle.child.ended.set()
        await until(lambda: cluster.rings and cluster.rings[0] is not lost)
        assert lost.state is RingState.ENDED
        assert "(pid 100" in str(lost.error) and "ended unexpectedly" in str(lost.error)
        async with asyncio.timeout(10):
            await cluster.service.until_ready()
        assert cluster.rings[0].epoch > lost.epoch


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
        async with asyncio.timeout(10), serving(2):
            pass
    assert all(handle.child.ended.is_set() for handle in stages.all)


@pytest.mark.parametrize("with_wills", [True, False])
async def test_a_ring_outlives_its_broker(stages, brokers, monkeypatch, with_wills):
    """It is ended, with last wills or without, and started again; what its nodes report afterwards
    is heard."""
    monkeypatch.setattr("molink.control.client.RECONNECT_FIRST_S", 0.05)
    monkeypatch.setattr("molink.control.connection._TIMEOUT_S", 0.5)
    async with serving(1) as cluster:
        (ring,), (broker,) = cluster.rings, brokers
        if with_wills:
            for session in broker._sessions:
                session.end(with_will=True)
        await broker.stop()
        await broker.start()

        def is_heard():
            stages.handles["stage 0"].tell_health(HEALTH)
            return ring.stages[0].health == HEALTH

        await until(is_heard)
        assert cluster.rings == [ring] and ring.state is RingState.SERVING


async def test_nothing_is_left_of_the_control_plane(stages, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    children = set(psutil.Process().children())
    async with serving(1):
        [folder] = tmp_path.iterdir()
        assert (folder / "registry.db").exists()
    assert not list(tmp_path.iterdir())
    assert set(psutil.Process().children()) <= children


async def test_without_a_temporary_folder_the_operator_is_told(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(UserError, match="TMPDIR"):
        async with serving(1):
            pass


async def test_a_bug_in_a_node_ends_the_cluster(stages, monkeypatch):
    async def broken(self):
        raise ZeroDivisionError

    monkeypatch.setattr(local_node.LocalNode, "_send_heartbeats", broken)
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(10), serving(1):
            await asyncio.Event().wait()


async def test_a_ring_of_one_is_led_to_where_its_stage_listens(stages):
    async with serving(1) as cluster:
        assert stages.handles["stage 0"].joined.next_address == f"tcp://127.0.0.1:{PORT}"
        (ring,) = cluster.service.rings
        assert ring.client.links.connected == [f"tcp://127.0.0.1:{REQUESTS_PORT}"]


async def test_an_emulator_stands_between_the_processes_and_a_lost_one_is_replaced(stages):
    async with serving(2, link=LinkSchedule.parse("100:30")) as cluster:
        joined = stages.handles["stage 1"].joined
        assert joined.next_address.startswith("tcp://127.0.0.1:")
        ports = {joined.next_address, joined.coordinator_address}
        assert not ports & {f"tcp://127.0.0.1:{PORT}", "tcp://127.0.0.1:9"}
        (ring,) = cluster.service.rings
        assert ring.client.ring.terms.emulated.rate_mbps == 100
        (emulator,) = [
            one
            for one in psutil.Process().children()
            if "molink.transport.emulator" in one.cmdline()
        ]
        emulator.kill()
        await until(lambda: cluster.service.unready_reason is not None)
        await until(lambda: "link emulator" in cluster.service.progress)
