"""Rings that fail: who rests for it, and what goes on without."""

import asyncio
import time
from dataclasses import dataclass, field, replace

import pytest

from molink.control.messages.payloads import NodeHealth
from molink.coordinator.planning import readiness
from molink.coordinator.ring import ring_watch
from molink.coordinator.ring.live_sequence import RequestStalledError, Served
from molink.coordinator.upkeep import manager as manager_module
from molink.coordinator.upkeep import ring_progress, ring_supervisor
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink.errors import RingError, RowsRefusedError, StageError
from molink.stage_protocol.progress import StageProgress
from molink_scheduler.routing.line_watch import STARVED_MAX
from tests.coordinator.examples import HERE, PROFILE
from tests.coordinator.upkeep.world import CARD, HEALTH, REPORT, collect, request, world


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
    monkeypatch.setattr(readiness, "CHANGES_WITHIN_S", 0.0)
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
    monkeypatch.setattr(ring_watch, "SILENCE_PERIOD_S", 0.0)
    async with world(monkeypatch, size=3) as w:
        w.join("a", "b", "c", "d")
        await w.until(lambda: w.serving)

        def noted():
            events = w.service.events.report(0).events
            return [one.text for one in events if one.kind == "rows_refused"]

        (ring,) = w.serving
        for _ in range(5):  # A ring is watched from the next turns of the loop on.
            w.say("c", complaining(0))
            await asyncio.sleep(0)
        for count in range(1, ring_watch.ROWS_REFUSED_MAX):
            w.say("c", complaining(count))
            await w.until(lambda count=count: len(noted()) == count)
            assert w.serving == [ring] and "b" not in w.service.standbys
        assert "c has refused rows of b that are no numbers" in noted()[0]
        w.say("c", complaining(ring_watch.ROWS_REFUSED_MAX))
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
        starved, other = sorted(w.clients, key=lambda one: not one.seen)
        starved.tokens.put_nowait(RequestStalledError("The ring has left the request lying."))
        await w.until(lambda: other.seen)
        other.tokens.put_nowait(5)
        assert await answer == [5]
        assert len(w.serving) == 2, "the ring goes on with the others"
        assert (starved.stall_factor, other.stall_factor) == (1.0, 2.0), (
            "an honest ring may need longer"
        )


@pytest.mark.parametrize("size", [1, 2])
async def test_a_head_that_lets_requests_lie_makes_way_for_another(monkeypatch, size):
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    async with world(monkeypatch, size=size) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        watch = w.clients[0].forecaster.watch
        watch._starved_at.extend([time.monotonic()] * (STARVED_MAX - 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert w.clients[0].unready_reason is None
        watch._starved_at.append(time.monotonic())
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
        await w.until(lambda: len(w.serving) == 1 and w.clients[0].has_other)
        has_other = w.clients[0].has_other
        assert not has_other(CARD.model_len_max)
        w.join("b")
        await w.until(lambda: len(w.serving) == 2)
        assert has_other(CARD.model_len_max)
        assert not has_other(CARD.model_len_max + 1)
        w.clients[1].unready_reason = "The ring has ended."
        assert not has_other(CARD.model_len_max)
