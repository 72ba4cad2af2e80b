"""Rings that fail: who rests for it, and what goes on without."""

import asyncio
import time
from dataclasses import dataclass, field, replace

import pytest

from molink.control.messages.payloads import NodeHealth, NodeWish, StageFact
from molink.coordinator.members.stage_watch import LoadLimits, StageFailure
from molink.coordinator.planning import cluster_plan
from molink.coordinator.planning.cluster_plan import CHANGES_MAX
from molink.coordinator.requests.ring_client import RequestStalledError, Served
from molink.coordinator.rings import manager as manager_module
from molink.coordinator.rings import ring_progress, ring_supervisor
from molink.coordinator.rings.blame import REST_FIRST_S, Blame
from molink.coordinator.rings.ring_supervisor import RingState
from molink.errors import RingError, RowsRefusedError, StageError
from molink.stage_protocol.messages import StageProgress
from molink_scheduler.routing.line_watch import LYING_MAX
from tests.coordinator.examples import HERE, PROFILE
from tests.coordinator.rings.world import CARD, HEALTH, REPORT, collect, request, world


async def test_a_node_whose_links_answer_nothing_rests_and_those_who_call_it_do_not(monkeypatch):
    anna, ben, carl, dora = (letter * 16 for letter in "abcd")
    async with world(monkeypatch, size=3) as w:
        w.deaf.add(ben)
        w.join(anna, ben, carl, dora)
        await w.until(lambda: w.members() == [[anna, carl, dora]])
        assert "It rests for 15 s: " in w.service.standbys[ben]
        assert f"{anna}: got no answer" in w.service.standbys[ben]
        assert set(w.manager.blame.reasons(time.monotonic())) == {ben}


IMPOSSIBLE = {"port": 0}, {"port": 2**17}, {"coordinator_port": -1}, {"weights_bytes": "x"}
LESS_THAN_PLANNED = (
    {"kv_tokens_capacity": 1},
    {"coordinator_port": None},
    {"kv_dtype": "int8"},
)


@pytest.mark.parametrize("line", [*IMPOSSIBLE, *LESS_THAN_PLANNED])
async def test_a_node_that_says_something_impossible_of_its_stage_rests(monkeypatch, line):
    async with world(monkeypatch, size=1) as w:
        w.planner.kv_tokens = 64
        w.loads["a"] = line
        w.join("a")
        await w.until(lambda: w.manager.last_failure)
        await w.until(lambda: "a" in w.service.standbys)
        assert w.manager.last_failure in w.service.standbys["a"]
        told = len(w.told)
        w.join("b")
        await w.until(lambda: w.members() == [["b"]])
        assert all(name == "b" or t.work is None for name, t in w.told[told:]), "a is left alone"


STOPPED = HERE.model_copy(update={"online": False, "reason": "The agent was stopped."})


async def test_agents_that_are_stopped_and_started_again_never_rest(monkeypatch):
    """A service that is restarted, or updated, or with Ctrl-C; minutes lie between two of them."""
    monkeypatch.setattr(cluster_plan, "CHANGES_WITHIN_S", 0.0)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        for number in range(10):
            name = "ab"[number % 2]
            await w.until(lambda: w.members() == [["a", "b"]])
            w.say(
                name,
                STOPPED.model_copy(update={"incarnation": w.book.node(name).presence.incarnation}),
            )
            await w.until(lambda: not w.serving)
            w.say(name, HERE.model_copy(update={"name": name, "incarnation": f"{number}" * 12}))
            assert not w.manager.blame.reasons(time.monotonic())
        assert not w.manager.blame.failed_lately("a", time.monotonic())


async def test_a_link_to_one_that_was_stopped_is_held_against_nobody(monkeypatch):
    anna, ben, carl = (letter * 16 for letter in "abc")
    async with world(monkeypatch, size=3) as w:
        w.deaf.add(ben)
        w.stuck.add(carl)
        w.join(anna, ben, carl)
        await w.until(lambda: len(w.told) == 3)
        ring = w.manager.rings[0]
        ring.stages[0].fail("anna got no answer from ben.", ben)
        w.say(ben, STOPPED)
        await w.until(lambda: not w.manager.rings)
        assert not w.manager.blame.reasons(time.monotonic())
        assert not w.manager.blame.failed_lately(anna, time.monotonic())


async def test_whoever_is_suspected_is_back_at_once_where_nobody_else_can_serve(monkeypatch):
    anna, ben = "a" * 16, "b" * 16
    async with world(monkeypatch, size=2) as w:
        w.deaf.add(ben)
        w.join(anna, ben)
        await w.until(lambda: w.manager.last_failure)
        w.deaf.clear()
        await w.until(lambda: w.members() == [[anna, ben]])
        assert w.manager.blame.failed_lately(ben, time.monotonic())


async def test_a_ring_for_which_nobody_is_to_blame_is_tried_ever_more_rarely(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        monkeypatch.setattr(manager_module, "RETRY_FIRST_S", 5.0)
        w.manager._retry_s = 5.0
        pauses = []
        for _ in range(8):
            w.manager.rings.append(EndedRing())
            w.manager._reap_ended(1000.0)
            pauses.append(w.manager._not_before - 1000.0)
        assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
        w.manager.rings.append(EndedRing(served_s=60.0))
        w.manager._reap_ended(1000.0)
        assert w.manager._not_before == 1005.0


@dataclass
class EndedRing:
    """A ring that has stopped on something that nobody foresaw."""

    served_s: float = 0.0
    state: RingState = RingState.ENDED
    error: StageError = field(default_factory=lambda: StageError("It stopped on KeyError."))
    number: int = 7
    has_served: bool = True
    stages: tuple = ()


async def test_everybody_stands_by_even_if_our_end_of_the_ring_cannot_be_closed(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)

        async def close():
            raise OSError("no free port")

        w.endpoints[0].close = close
        (ring,) = w.serving
        w.clients[0].lost.set_result(RingError("The link is lost."))
        await w.until(lambda: {name for name, told in w.told if told.work is None} == {"a", "b"})
        assert ring.state is RingState.ENDED and ring not in w.serving


def refusing() -> NodeHealth:
    """The report of a stage that was sent what it refuses."""
    stage = HEALTH | {"frames_refused": 1}
    return NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage)


async def test_what_a_stage_refuses_ends_the_ring_and_is_held_against_its_sender(monkeypatch):
    """Users would wait for the rows or tokens that should have come in its place."""
    async with world(monkeypatch, size=3) as w:
        w.join("a", "b", "c", "d")
        await w.until(lambda: w.serving)
        for _ in range(5):  # A ring is watched from the next turns of the loop on.
            w.say("c", refusing())
            await asyncio.sleep(0)
        await w.until(lambda: w.members() == [["a", "c", "d"]])
        assert "b has sent c what no stage of a ring sends" in w.service.standbys["b"]


def complaining(count: int) -> NodeHealth:
    """The report of a stage that was sent rows that are no numbers."""
    stage = HEALTH | {"rows_refused": count}
    return NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage)


async def test_bad_rows_cost_no_ring_until_there_are_too_many(monkeypatch):
    monkeypatch.setattr(ring_supervisor, "SILENCE_PERIOD_S", 0.0)
    async with world(monkeypatch, size=3) as w:
        w.join("a", "b", "c", "d")
        await w.until(lambda: w.serving)

        def noted():
            events = w.service.events.report(0)["events"]
            return [one["text"] for one in events if one["kind"] == "rows_refused"]

        (ring,) = w.serving
        for _ in range(5):  # A ring is watched from the next turns of the loop on.
            w.say("c", complaining(0))
            await asyncio.sleep(0)
        for count in range(1, ring_supervisor.ROWS_REFUSED_MAX):
            w.say("c", complaining(count))
            await w.until(lambda count=count: len(noted()) == count)
            assert w.serving == [ring] and "b" not in w.service.standbys
        assert "c has refused rows of b that are no numbers" in noted()[0]
        w.say("c", complaining(ring_supervisor.ROWS_REFUSED_MAX))
        await w.until(lambda: w.members() == [["a", "c", "d"]])
        assert "c has refused rows of b" in w.service.standbys["b"]


async def test_what_was_refused_in_a_ring_before_says_nothing_of_this_one(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.stuck.add("b")
        w.join("a", "b")
        await w.until(lambda: len(w.told) == 2)
        w.say("a", refusing())
        w.stuck.clear()
        w.say("b", HERE.model_copy(update={"name": "b", "incarnation": "b" * 12}))
        w.say("b", PROFILE)
        await w.until(lambda: w.serving)
        for _ in range(20):
            w.say("a", PROFILE)
            await asyncio.sleep(0)
        assert w.members() == [["a", "b"]]


def health(reports, stalled_s=0.0, *, host_is_short=False):
    progress = StageProgress(reports=reports, stalled_s=stalled_s)
    stage = replace(REPORT, progress=progress, host_is_short=host_is_short)
    return NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage)


@pytest.mark.parametrize(
    ("reports", "stalled_s", "why"),
    [(0, 0.0, "has reported nothing for 11 s"), (1, 61.0, "has computed nothing for 61 s")],
)
async def test_a_stage_that_stands_still_behind_a_lively_agent_rests(
    monkeypatch, reports, stalled_s, why
):
    async with world(monkeypatch, size=1) as w:
        w.join("a", "b")
        await w.until(lambda: w.members() == [["a"], ["b"]])
        answer = asyncio.create_task(collect(w.service.generate(request(2))))
        await w.until(lambda: w.clients[0].seen)
        w.clients[0].tokens.put_nowait(1)
        for second in range(1, 15):
            for name, number, stalled in ("a", reports * second, stalled_s), ("b", second, 0.0):
                w.book.take(name, health(number, stalled), float(second))
                w.book.wake(w.book.node(name))
            for _ in range(5):
                await asyncio.sleep(0)
        await w.until(lambda: w.members() == [["b"]])
        w.clients[0].lost.cancel()
        await w.until(lambda: "a" in w.service.standbys)
        assert why in w.service.standbys["a"]
        assert w.clients[1].seen[0][1] == (1,), "what was told goes along"
        w.clients[1].tokens.put_nowait(2)
        assert await answer == [1, 2]
        assert set(w.manager.blame.reasons(time.monotonic())) == {"a"}


async def test_a_ring_whose_tokens_do_not_come_ends_and_one_of_it_rests(monkeypatch):
    """Everybody reports that all is well."""
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    monkeypatch.setattr(ring_progress, "PATIENCE_MIN_S", 1e-9)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["a", "b"]])
        monkeypatch.setattr(ring_progress, "ROUNDS_MAX", 0.0)
        w.clients[0].counts = Served(0, 1, 0, 0.1)
        await w.until(lambda: w.members() == [["b", "c"]])
        await w.until(lambda: "a" in w.service.standbys)
        assert "a stands still: no token has come" in w.service.standbys["a"]


async def test_a_request_that_its_ring_leaves_lying_moves_to_another(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a", "b")
        await w.until(lambda: len(w.serving) == 2)
        answer = asyncio.create_task(collect(w.service.generate(request(1))))
        await w.until(lambda: any(one.seen for one in w.clients))
        lying, other = sorted(w.clients, key=lambda one: not one.seen)
        lying.tokens.put_nowait(RequestStalledError("The ring has left the request lying."))
        await w.until(lambda: other.seen)
        other.tokens.put_nowait(5)
        assert await answer == [5]
        assert len(w.serving) == 2, "the ring goes on with the others"
        assert (lying.patience, other.patience) == (1.0, 2.0), "an honest ring may need longer"


@pytest.mark.parametrize("size", [1, 2])
async def test_a_head_that_lets_requests_lie_makes_way_for_another(monkeypatch, size):
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    async with world(monkeypatch, size=size) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        watch = w.clients[0].prospects.watch
        watch._lied_at.extend([time.monotonic()] * (LYING_MAX - 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert w.clients[0].unready_reason is None
        watch._lied_at.append(time.monotonic())
        w.join("c")
        await w.until(lambda: w.members() in ([["b", "c"]], [["b"], ["c"]]))
        assert "were left lying while others were served" in w.service.standbys["a"]


async def test_a_request_whose_rows_are_refused_tries_one_more_ring_and_no_third(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a", "b", "c")
        await w.until(lambda: len(w.serving) == 3)
        answer = asyncio.create_task(collect(w.service.generate(request(1))))
        for tried in (1, 2):
            await w.until(lambda tried=tried: sum(bool(one.seen) for one in w.clients) == tried)
            for one in w.clients:
                if one.seen and one.tokens.empty() and not hasattr(one, "told"):
                    one.tokens.put_nowait(RowsRefusedError("Numbers of this request grow."))
                    one.told = True
        with pytest.raises(RowsRefusedError, match="Numbers of this request grow"):
            await answer
        assert sorted(bool(one.seen) for one in w.clients) == [False, True, True]
        assert len(w.serving) == 3, "all rings go on"


async def test_a_request_whose_rows_are_refused_ends_where_there_is_one_ring(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: len(w.serving) == 1)
        answer = asyncio.create_task(collect(w.service.generate(request(1))))
        await w.until(lambda: w.clients[0].seen)
        w.clients[0].tokens.put_nowait(RowsRefusedError("Numbers of this request grow."))
        with pytest.raises(RowsRefusedError):
            await answer
        assert len(w.clients[0].seen) == 1 and len(w.serving) == 1


async def test_a_ring_sheds_while_a_stage_s_pc_has_too_little_memory(monkeypatch):
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.members() == [["a", "b"]])
        client = w.clients[0]
        assert client.shed == []
        w.book.take("b", health(2, host_is_short=True), 1.0)
        await w.until(lambda: client.shed)
        assert set(client.shed) == {"b"}
        w.book.take("b", health(3), 2.0)
        await w.until(lambda: not client.short_of_memory)


async def test_a_request_may_move_only_where_another_ring_can_take_it(monkeypatch):
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: len(w.serving) == 1 and w.clients[0].may_move)
        may_move = w.clients[0].may_move
        assert not may_move(CARD.model_len_max)
        w.join("b")
        await w.until(lambda: len(w.serving) == 2)
        assert may_move(CARD.model_len_max)
        assert not may_move(CARD.model_len_max + 1)
        w.clients[1].unready_reason = "The ring has ended."
        assert not may_move(CARD.model_len_max)


def loads_within(w, **limits):
    w.manager.assigner = replace(w.manager.assigner, limits=replace(LoadLimits(), **limits))
    w.manager._failover.assigner = w.manager.assigner


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
        await w.until(lambda: any(one.without for one in w.manager._failover._late.values()))
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
        assert not w.manager._failover.under_way


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
