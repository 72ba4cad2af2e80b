"""A stage that is slow and says that it is fast is found by the rings that it has been in."""

import asyncio
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.control.messages.payloads import NodeHealth
from molink.coordinator.nodes.slowdown import Slowdown
from molink.coordinator.upkeep.slow import slow_rings
from molink.coordinator.upkeep.slow.slow_rings import (
    GAPS_MIN,
    SLOWER_MIN,
    WINDOW_S,
    PaceWatch,
    expected_s,
)
from tests.coordinator.upkeep.world import REPORT, world


def watched(each_s, expected, seconds, watch=None, pause_s=0.0):
    """What a watch says of a ring whose tokens take so long, and when."""
    watch, found = watch or PaceWatch(), []
    for second in range(seconds):
        gaps = int(second / (each_s + pause_s))
        times = watch.update(gaps, gaps * each_s, expected, float(second))
        found += [(second, times)] if times is not None else []
    return found


def test_a_ring_that_is_slow_for_a_minute_is_noticed_and_not_before():
    (second, times), *_ = watched(2.0, 0.02, 70)
    assert second == WINDOW_S and times == pytest.approx(100.0)
    assert not watched(2.0, 0.02, int(WINDOW_S))


def test_a_ring_of_which_nobody_asks_anything_is_neither_slow_nor_fast():
    assert watched(0.02, 0.02, 600, pause_s=600.0 / (GAPS_MIN - 1)) == []
    ((_, times),) = watched(0.02, 0.02, 119, pause_s=1.0)
    assert times == pytest.approx(1.0), "pauses between requests are no times between tokens"


def test_what_nobody_feels_is_not_slow():
    ((_, times),) = watched(0.09, 0.001, 119)
    assert times == 1.0


def test_what_was_to_be_expected_at_any_time_of_the_minute_counts():
    watch = PaceWatch()
    assert watched(0.5, 0.5, 30, watch) == []
    found = [
        times
        for second in range(30, 61)
        if (times := watch.update(2 * second, float(second), 0.1, float(second))) is not None
    ]
    assert found == [pytest.approx(1.0)]


FORECAST = SimpleNamespace(tpot_alone_s=0.1, tpot_s=0.4, users=4, delay_s=0.05)


@pytest.mark.parametrize(
    ("running", "steps_s", "found_s"),
    [(1, 0.01, 0.1), (4, 0.01, 0.4), (0, 0.01, 0.1), (1, 0.2, 0.45)],
)
def test_what_is_expected_is_forecast_or_told_by_stages(running, steps_s, found_s):
    stages = [SimpleNamespace(health=replace(REPORT, decode_step_s=steps_s))] * 2
    ring = SimpleNamespace(plan=SimpleNamespace(forecast=FORECAST), stages=stages)
    assert expected_s(ring, running) == pytest.approx(found_s)
    ring.plan.forecast = None
    assert expected_s(ring, running) == 0.0


def report(number):
    stage = replace(REPORT, progress=replace(REPORT.progress, reports=number))
    return NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage)


async def minutes(w, liar, count, honest_s=0.1):
    """So many minutes of tokens, which take 20 times as long where the liar is."""
    for number in range(count):
        for ring in w.serving:
            (client,) = [one.client for one in w.service.rings if one.number == ring.number]
            names = [stage.node.node_id for stage in ring.stages]
            for name in names:
                w.say(name, report(number))
            client.forecaster.gaps += GAPS_MIN
            client.forecaster.gaps_s += GAPS_MIN * (20 * honest_s if liar in names else honest_s)
        w.manager.step(time.monotonic())
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.parametrize("liar", ["a", "b"])
async def test_a_stage_that_says_it_is_fast_rests_by_the_third_ring(monkeypatch, liar):
    monkeypatch.setattr(slow_rings, "WINDOW_S", 0.0)
    monkeypatch.setattr(slow_rings, "expected_s", lambda ring, running: 0.1)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["a", "b"]])
        await minutes(w, liar, 60)
        honest = sorted({"a", "b", "c"} - {liar})
        await w.until(lambda: w.members() == [honest])
        assert w.manager.rings[0].number <= 2, "the third ring at the latest"
        await minutes(w, liar, 20)
        now = time.monotonic()
        assert w.members() == [honest] and set(w.manager.blame.reasons(now)) == {liar}
        assert not any(w.manager.blame.failed_lately(one, now) for one in honest)
        told = [one.text for one in w.service.events.after(0) if one.kind == "trouble"]
        assert told and "20.0 times as long for a token as was forecast" in told[0]


@pytest.mark.parametrize(
    ("known", "is_told"), [(Slowdown(decode=5.0), True), (Slowdown(link_mbps=1.0), False)]
)
async def test_one_that_is_known_to_be_slow_hides_no_liar(monkeypatch, known, is_told):
    """What its own steps take is expected of its ring; what a slow line takes is not known."""
    monkeypatch.setattr(slow_rings, "WINDOW_S", 0.0)
    monkeypatch.setattr(slow_rings, "expected_s", lambda ring, running: 0.1)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        monkeypatch.setattr(w.manager._slowdowns, "_checked_at", math.inf)
        w.manager.rings[0].stages[0].node.slowdown = known
        await minutes(w, "b", 10)
        kinds = [one.kind for one in w.service.events.after(0)]
        assert ("trouble" in kinds) is is_told


async def test_a_slow_ring_without_which_nobody_could_serve_is_told_of_and_left(monkeypatch):
    monkeypatch.setattr(slow_rings, "WINDOW_S", 0.0)
    monkeypatch.setattr(slow_rings, "expected_s", lambda ring, running: 0.1)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        await minutes(w, "b", 60)
        assert w.members() == [["a", "b"]] and not w.manager.blame.reasons(time.monotonic())
        assert [one.kind for one in w.service.events.after(0)].count("trouble") == 1
        assert SLOWER_MIN < 20


async def test_where_nobody_is_in_all_slow_rings_they_are_left_as_they_are(monkeypatch):
    """The forecast is wrong, and nobody rests for it."""
    monkeypatch.setattr(slow_rings, "WINDOW_S", 0.0)
    monkeypatch.setattr(slow_rings, "expected_s", lambda ring, running: 0.001)
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.serving)
        for _ in range(4):
            await minutes(w, "", 20, 0.5)
            await w.until(lambda: w.serving)
        number = w.manager.rings[0].number
        await minutes(w, "", 40, 0.5)
        assert w.manager.rings[0].number == number <= 4
        now = time.monotonic()
        assert not [one for one in w.members()[0] if w.manager.blame.failed_lately(one, now)]
