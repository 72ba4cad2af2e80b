"""Members that load slowly, not at all, or change their wish meanwhile: who waits, who rests."""

import asyncio
import time
from dataclasses import replace

import pytest

from molink.control.messages.payloads import NodeWish, StageFact
from molink.coordinator.planning.readiness import CHANGES_MAX
from molink.coordinator.ring.stage_watch import LoadLimits, StageFailure
from molink.coordinator.upkeep.blame import REST_FIRST_S, STOPS_S, Blame
from molink.coordinator.upkeep.ring_supervisor import RingState
from tests.coordinator.examples import PROFILE
from tests.coordinator.upkeep.world import world


def loads_within(w, **limits):
    w.manager.assigner = replace(w.manager.assigner, limits=replace(LoadLimits(), **limits))
    w.manager._handover.assigner = w.manager.assigner


async def test_a_member_that_does_not_go_on_loading_rests(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        loads_within(w, download_s=0.0)
        w.slow.add("a")
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["b", "c"]])
        assert "a: it has downloaded nothing for" in w.service.standbys["a"]
        assert set(w.manager.blame.reasons(time.monotonic())) == {"a"}


async def test_a_member_that_the_coordinator_makes_wait_is_not_blamed(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        loads_within(w, download_s=0.0)
        w.slow.add("a")
        w.book.make_wait("a", time.monotonic() + 3600.0)
        w.join("a", "b", "c")
        await w.until(lambda: w.book.node("a").current_fact)
        for _ in range(50):
            w.say("a", PROFILE)
            await asyncio.sleep(0)
        assert [ring.state for ring in w.manager.rings] == [RingState.LOADING]
        assert not w.manager.last_failure


async def test_nobody_waits_for_a_member_without_which_the_others_suffice(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        loads_within(w, lagging_s=0.0)
        w.slow.add("a")
        w.join("a", "b")
        await w.until(lambda: any(one.without for one in w.manager._handover._late.values()))
        assert w.manager.rings, "without it the other cannot serve"
        w.join("c", "d")
        await w.until(lambda: w.members() == [["c", "d"]])
        assert not w.manager.blame.is_resting("a", time.monotonic()), "who serves has time"


async def test_a_member_that_lags_rests_when_others_could_serve_at_once(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        loads_within(w, lagging_s=0.0)
        w.slow.add("a")
        w.planner.size = 3
        w.join("a", "b", "c")
        await w.until(lambda: w.manager.rings)
        w.planner.size = 2
        await w.until(lambda: w.members() == [["b", "c"]])
        assert "did not go on loading" in w.service.standbys["a"]


@pytest.mark.parametrize(
    ("each_s", "rest_s", "within_s"),
    [
        pytest.param(0.011 / 50, 0.0, 14, id="creeps by a hundredth each 50 s"),
        pytest.param(0.011 / 50, 6000.0, None, id="and the others would take longer still"),
        pytest.param(1 / 50, 0.0, None, id="takes less than a minute"),
        pytest.param(None, 0.0, 75, id="promises to be there in a moment, again and again"),
    ],
)
async def test_nobody_waits_for_a_download_that_creeps(monkeypatch, each_s, rest_s, within_s):
    """In virtual time: while it says every second how far it is, and the others have loaded."""
    async with world(monkeypatch, size=3) as w:
        w.slow.add("a")
        w.planner.fetches = dict.fromkeys("bc", rest_s)
        w.join("a", "b", "c")
        await w.until(lambda: w.book.node("b").current_fact and w.manager.rings)
        await w.until(lambda: sum(one.loaded is not None for one in w.manager.rings[0].stages) == 2)
        w.planner.size = 2
        ring, (late,), began = w.manager.rings[0], w.manager.rings[0].stages[:1], time.monotonic()
        for second in range(100):
            ring.clock = late.clock = lambda second=second: began + second
            told = 0.05 + second * each_s if each_s else 1 - 0.9 ** (1 + second)
            revision = w.book.node("a").assignment.revision
            w.say("a", StageFact(revision=revision, kind="downloading", fraction=min(told, 1.0)))
            for _ in range(4):
                w.manager.step(time.monotonic())
                await asyncio.sleep(0)
            if late.failure is not None or told >= 1:
                break
        assert (late.failure is not None) == (within_s is not None)
        if within_s is not None:
            assert second <= within_s
            assert "as fast as others serve without it" in late.failure.reason
            await w.until(lambda: w.members() == [["b", "c"]])


async def test_a_better_ring_whose_newcomer_cannot_load_leaves_the_present_one(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        first = w.serving[0]
        w.broken.add("b")
        w.planner.size, w.planner.worth = 2, "It is faster."
        w.join("b")
        await w.until(lambda: "b" in w.service.standbys)
        assert w.serving == [first]
        assert not w.manager._handover.under_way


async def test_one_that_flips_its_wish_rests_and_the_others_serve(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.manager.readiness.settle_s = 1e9
        w.join("a", "b", "c")
        for count in range(2 * CHANGES_MAX):
            w.say("a", NodeWish(wish="pause" if count % 2 else "serve"))
            for _ in range(3):
                await asyncio.sleep(0)
        await w.until(lambda: "a" in w.service.standbys)
        w.manager.readiness.settle_s = 0.0
        await w.until(lambda: w.members() == [["b", "c"]])
        assert "changes its wish" in w.service.standbys["a"]


async def test_no_ring_that_serves_is_risked_for_one_that_failed_lately(monkeypatch):
    async with world(monkeypatch, size=2, blame=Blame(first_s=0.0)) as w:
        w.broken.add("c")
        w.join("c", "b")
        await w.until(lambda: w.manager.last_failure)
        w.join("a")
        await w.until(lambda: w.members() == [["a", "b"]])
        w.broken.clear()
        w.planner.size, w.planner.worth = 3, "twice the users"
        await w.until(lambda: w.manager.plan.shortage)
        assert w.members() == [["a", "b"]], "its rest is over, its failure is not forgiven"
        w.manager.blame = Blame()
        await w.until(lambda: w.members() == [["a", "b", "c"]])


async def test_no_ring_that_serves_is_risked_while_members_are_stopped_by_turns(monkeypatch):
    async with world(monkeypatch, size=2, blame=Blame(first_s=0.0)) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["a", "b"]])
        now = time.monotonic()
        w.manager.blame.left("c", "c", now, announced=True)
        w.planner.size, w.planner.worth = 3, "twice the users"
        for _ in range(20):
            w.manager.step(now)
            await asyncio.sleep(0)
        assert w.members() == [["a", "b"]] and w.manager.blame.are_stopped(now)
        assert not w.manager.blame.are_stopped(now + STOPS_S)
        w.manager.blame = Blame()
        await w.until(lambda: w.members() == [["a", "b", "c"]])


async def test_who_changed_its_wish_while_it_rested_is_back_when_its_rest_is_over(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a")
        now = time.monotonic()
        w.manager.step(now)
        w.manager.blame.failed(StageFailure("a", "disk full"), now)
        for count in range(1, 2 * CHANGES_MAX + 1):
            w.say("a", NodeWish(wish="pause" if count % 2 else "serve"))
            w.manager.step(now + count)
        w.manager.step(now + REST_FIRST_S + 1)
        assert not w.manager.blame.is_resting("a", now + REST_FIRST_S + 1)
        assert w.manager.free(now + REST_FIRST_S + 1) == [w.book.node("a")]
