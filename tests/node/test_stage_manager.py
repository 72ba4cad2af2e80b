"""One assignment after the other, carried out over a stage that tests imagine."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from molink.control.messages.assignment import Assignment, Follow, GoOn, Hold, Join
from molink.control.messages.base import Unreadable
from molink.control.messages.cell import PairOrder
from molink.control.messages.payloads import LinkKeys, ShadowOrder, StageLease, StageLink
from molink.coordinator.local.local_node import DirectRoutes
from molink.errors import DeviceMemoryError, LinkLostError, NoRoomError, StageError, UserError
from molink.node import stage_manager
from molink.node.stage_manager import StageManager
from molink.stage_protocol.lan_lease import LanLease
from molink.stage_protocol.messages import (
    Borrow,
    FollowRing,
    JoinRing,
    LoadStage,
    SetPair,
    SetShadow,
)
from molink.stage_protocol.pairing import Pairing, PairLink
from molink.wire.curve_keys import CurveKeys
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.resume import Resume
from tests.control.assignments import loading, stopping
from tests.coordinator.examples import WORK
from tests.node.fake_stage import FakeHandle

KEYS = ("a" * 40, "b" * 40)
LINK = StageLink(to="n" * 16, public_key=KEYS[0], addresses=("127.0.0.1:7",), port_name="ring")
JOIN = RingTerms(64, micro_batch_candidates=(1, 2))
LOAD = loading(WORK, epoch=5)
PLACED = {"terms": JOIN, "next_link": LINK, "coordinator_link": None}
JOINED = Assignment(revision=2, epoch=5, command=Join(work=WORK, **PLACED))


class Hosted:
    """A manager, what it has published, and the stages that it has started."""

    def __init__(self, *troubles, keys=None, operators_own=False):
        self.facts, self.handles, self.published = [], [], asyncio.Event()
        self.troubles = list(troubles)
        self.keys, self.more_asked = keys, []
        self.may_end_loading = None
        self.stands_ready, self.has_no_process = asyncio.Event(), False
        routes = DirectRoutes(lambda: None, is_tail=False)
        self.manager = StageManager(self, routes, self.publish, operators_own=operators_own)

    async def prepare(self, work, report):
        report(1.0)
        await asyncio.sleep(0)
        return "/model"

    async def start(self, work, directory, allowed):
        load = LoadStage(directory, work, "h", keys=self.keys)
        trouble = self.troubles.pop(0) if self.troubles else None
        self.handles.append(FakeHandle("stage 0", load, trouble, self.may_end_loading))
        return self.handles[-1]

    async def more(self, work, allowed, report):
        report(1.0)
        self.more_asked.append(work.layers)
        return LoadStage("/model", work, "h", keys=self.keys)

    async def stand_ready(self, work):
        self.stands_ready.set()
        if self.has_no_process:
            raise OSError("no memory")

    async def stand_down(self):
        self.stands_ready.clear()

    async def publish(self, fact):
        self.facts.append(fact)
        self.published.set()

    async def until(self, kind):
        async with asyncio.timeout(5):
            while not self.facts or self.facts[-1].kind != kind:
                self.published.clear()
                await self.published.wait()
        return self.facts[-1]


@asynccontextmanager
async def hosted(*troubles, **options):
    made = Hosted(*troubles, **options)
    try:
        yield made
    finally:
        await made.manager.stop()
    assert all(handle.child.ended.is_set() for handle in made.handles)


async def test_an_assignment_is_loaded_joined_and_left_to_its_end():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        loaded = await h.until("loaded")
        assert loaded.revision == 1
        assert loaded.line.kv_tokens_capacity == 64
        assert [fact.kind for fact in h.facts if fact.fraction] == ["downloading", *["loading"] * 2]
        assert h.manager.state == "standby"
        await h.manager.assign(JOINED)
        assert (await h.until("ready")).revision == 2
        assert h.handles[0].joined.next_address == "tcp://127.0.0.1:7"
        assert h.manager.state == "serving"
        await h.manager.assign(stopping(revision=3))
        await h.until("stopped")
        assert h.handles[0].child.ended.is_set()


@pytest.mark.parametrize(
    ("trouble", "times", "is_mistake"),
    [
        (NoRoomError("cuda:0 has room for 100 tokens of KV."), 1, True),
        (DeviceMemoryError("cuda:0 ran out of memory."), 1, False),
        (StageError("It died."), 0, False),
    ],
)
async def test_a_device_that_was_full_is_counted(trouble, times, is_mistake):
    async with hosted(trouble, operators_own=True) as h:
        await h.manager.assign(LOAD)
        assert (await h.until("failed")).user_fault == is_mistake
        assert h.manager.times_full == times


async def test_what_was_told_before_is_not_done_again():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        await h.manager.assign(stopping(revision=1))
        assert h.manager.busy
        assert not h.handles[0].child.ended.is_set()


async def test_a_stage_that_loads_goes_on_loading_in_the_next_epoch_of_its_ring():
    async with hosted() as h:
        h.may_end_loading = asyncio.Event()
        await h.manager.assign(LOAD)
        await h.until("loading")
        next_epoch = LOAD.model_copy(update={"revision": 2, "epoch": 6})
        await h.manager.assign(next_epoch)
        await h.until("loading")
        h.may_end_loading.set()
        assert (await h.until("loaded")).revision == 2
        assert len(h.handles) == 1


async def test_a_stage_that_was_in_a_ring_is_not_used_for_another():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        await h.manager.assign(JOINED)
        await h.until("ready")
        await h.manager.assign(LOAD.model_copy(update={"revision": 3, "epoch": 6}))
        await h.until("loaded")
        assert len(h.handles) == 2
        assert h.handles[0].child.ended.is_set()


@pytest.mark.parametrize("operators_own", [True, False])
async def test_whose_fault_it_is_is_said_only_where_the_node_is_the_operators(operators_own):
    async with hosted(UserError("No such device."), operators_own=operators_own) as h:
        await h.manager.assign(LOAD)
        fact = await h.until("failed")
        assert (fact.message, fact.user_fault) == ("No such device.", operators_own)
        assert h.manager.state == "standby"


async def test_a_stage_that_fails_or_dies_is_a_failure_of_nobody():
    async with hosted(StageError("Out of memory."), operators_own=True) as h:
        await h.manager.assign(LOAD)
        assert not (await h.until("failed")).user_fault
        await h.manager.assign(LOAD.model_copy(update={"revision": 2}))
        await h.until("loaded")
        h.handles[1].child.ended.set()
        assert "ended before it joined" in (await h.until("failed")).message


@pytest.mark.parametrize(("link", "about"), [("next", "n" * 16), ("coordinator", "")])
async def test_a_link_that_is_lost_names_the_neighbour(link, about):
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        h.handles[0].lost = LinkLostError("It got no answer.", link)
        await h.manager.assign(JOINED)
        fact = await h.until("failed")
        assert (fact.message, fact.about) == ("It got no answer.", about)


async def test_keys_are_for_stages_whose_links_are_encrypted():
    told = LinkKeys(revision=1, allowed=KEYS)
    for keys, heard in ((None, []), (CurveKeys(*KEYS), [KEYS])):
        async with hosted(keys=keys) as h:
            await h.manager.assign(LOAD)
            await h.until("loaded")
            h.manager.allow(told)
            h.manager.allow(told)
            assert h.handles[0].allowed == heard


async def test_orders_of_another_coordinator_are_heeded_though_their_numbers_are_lower():
    async with hosted(keys=CurveKeys(*KEYS)) as h:
        h.manager.allow(LinkKeys(revision=2_000_000_000, allowed=KEYS))
        await h.manager.stop()
        h.manager.forget_orders()
        await h.manager.assign(LOAD)
        await h.until("loaded")
        told = KEYS[:1]
        h.manager.allow(LinkKeys(revision=1, allowed=told))
        assert h.handles[0].allowed == [told]


async def test_a_stage_ends_although_its_routes_cannot_be_left():
    class Routes(DirectRoutes):
        async def leave(self):
            raise OSError("the relay is gone")

    async with hosted() as made:
        await made.manager.assign(LOAD)
        await made.until("loaded")
        usual, made.manager.routes = made.manager.routes, Routes(lambda: None, is_tail=False)
        with pytest.raises(OSError, match="relay"):
            await made.manager.stop()
        made.manager.routes = usual
        assert made.handles[0].child.returncode == 0


RESUME = Resume(((1, 4), (2, 9)), next_held=())
GOES_ON = Assignment(revision=3, epoch=6, command=GoOn(work=WORK, **PLACED, resume=RESUME))


async def test_a_stage_goes_on_in_the_next_epoch_of_its_ring_as_it_is():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        await h.manager.assign(JOINED)
        await h.until("ready")
        (handle,) = h.handles
        handle.missing = (2,)
        h.facts.clear()
        await h.manager.assign(GOES_ON)
        ready = await h.until("ready")
        assert h.handles == [handle] and not handle.child.ended.is_set()
        assert (handle.joined.epoch, handle.joined.resume) == (6, RESUME)
        assert ready.missing == (2,) and len(h.facts) == 1, "nothing was loaded"


HELD = Assignment(revision=3, epoch=6, command=Hold(work=WORK))


async def test_a_survivor_holds_its_links_until_its_ring_goes_on():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        await h.manager.assign(JOINED)
        await h.until("ready")
        (handle,) = h.handles
        h.facts.clear()
        await h.manager.assign(HELD)
        await asyncio.sleep(0)
        assert handle.held == 1 and not h.facts
        await h.manager.assign(GOES_ON.model_copy(update={"revision": 4}))
        assert (await h.until("ready")).revision == 4
        assert handle.held == 1 and h.handles == [handle] and not handle.child.ended.is_set()


async def test_one_that_has_ended_cannot_hold_anything_and_loads_nothing():
    async with hosted() as h:
        await h.manager.assign(HELD)
        await h.until("failed")
        assert not h.handles


async def test_a_stage_that_has_ended_does_not_go_on():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        await h.manager.assign(JOINED)
        await h.until("ready")
        h.handles[0].child.ended.set()
        await h.manager.assign(GOES_ON)
        assert "ended before it joined" in (await h.until("failed")).message


@pytest.mark.parametrize("has_no_process", [False, True])
async def test_once_it_has_joined_a_process_waits_for_its_loss(monkeypatch, has_no_process):
    """And ends when nobody counts on the node any more, but not when the stage is lost."""
    monkeypatch.setattr(stage_manager, "STAND_READY_AFTER_S", 0.0)
    async with hosted() as h:
        h.has_no_process = has_no_process
        await h.manager.assign(LOAD)
        await h.until("loaded")
        assert not h.stands_ready.is_set()
        await h.manager.assign(JOINED)
        await asyncio.wait_for(h.stands_ready.wait(), 5)
        assert not h.handles[0].child.ended.is_set()
        h.handles[0].child.ended.set()
        await h.until("failed")
        assert h.stands_ready.is_set()
        await h.manager.assign(stopping(revision=9))
        await h.until("stopped")
        assert not h.stands_ready.is_set()


async def test_a_stage_is_led_to_the_shadow_of_the_next_one_in_its_epoch():
    order = ShadowOrder(revision=9, epoch=JOINED.epoch, link=LINK)
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        await h.manager.lead_to_shadow(order)
        await h.manager.assign(JOINED)
        await h.until("ready")
        assert h.handles[0].shadow is None, "the order came before it was in that ring"
        await h.manager.lead_to_shadow(order)
        async with asyncio.timeout(5):
            while h.handles[0].shadow is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert h.handles[0].shadow == SetShadow(JOINED.epoch, "tcp://127.0.0.1:7", None)


async def test_a_stage_is_given_a_lease_while_it_is_in_the_ring_that_is_meant():
    lease = LanLease("127.0.0.1", 4000, 7, "0a" * 32, 1, 2**20)
    meant, other = (StageLease(ring=ring, tokens=64, lease=lease) for ring in (JOINED.ring, 99))
    async with hosted() as h:
        h.manager.tell(meant)
        await h.manager.assign(LOAD)
        await h.until("loaded")
        h.manager.tell(meant)
        await h.manager.assign(JOINED)
        await h.until("ready")
        h.manager.tell(other)
        assert h.handles[0].borrowed == []
        h.manager.tell(meant)
        assert h.handles[0].borrowed == [Borrow(64, lease)]


async def test_a_stage_is_paired_while_it_is_in_the_ring_that_is_meant():
    pairing = Pairing(link=PairLink(7, "0a" * 32))
    meant, other = (PairOrder(ring=ring, pairing=pairing) for ring in (JOINED.ring, 99))
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        h.manager.tell(meant)
        await h.manager.assign(JOINED)
        await h.until("ready")
        h.manager.tell(other)
        assert h.handles[0].paired == []
        h.manager.tell(meant)
        h.manager.tell(PairOrder(ring=JOINED.ring))
        assert h.handles[0].paired == [SetPair(pairing), SetPair()]


async def test_a_shadow_joins_without_a_place_and_then_takes_one_in_the_same_process():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        beside = Assignment(revision=2, epoch=5, command=Follow(work=WORK, terms=JOIN))
        await h.manager.assign(beside)
        await h.until("ready")
        (handle,) = h.handles
        assert handle.joined == FollowRing(5, JOIN)
        placed = GoOn(work=WORK, **PLACED, resume=Resume(((4, 7),), held=()))
        await h.manager.assign(Assignment(revision=3, epoch=6, command=placed))
        async with asyncio.timeout(5):
            while not isinstance(handle.joined, JoinRing):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert h.handles == [handle] and not handle.child.ended.is_set()


async def test_a_command_of_another_version_ends_the_stage_and_says_what_to_do():
    async with hosted() as h:
        await h.manager.assign(LOAD)
        await h.until("loaded")
        unknown = Unreadable({"kind": "fly"}, "no command of this version")
        await h.manager.assign(Assignment(revision=2, epoch=5, command=unknown))
        assert "update MoLink" in (await h.until("failed")).message
        assert h.handles[0].child.ended.is_set() and not h.manager.busy
