"""What a sweep over rings finds, where arithmetic says it beforehand."""

import pytest

from molink.errors import UserError
from molink_scheduler.batch import DECODE
from molink_sim.even_ring import even_ring
from molink_sim.micro_batch_sweep import (
    SweepSetting,
    findings,
    findings_table,
    modelled_s,
    simulate_sweep,
    sweep_json,
)
from molink_sim.scenario import LinkSpec


@pytest.fixture(scope="module")
def slow_link():
    """Many users on 20 Mbps: a micro-batch of all takes the first link long, and the second one
    waits for it."""
    return SweepSetting(
        bandwidth_mbps=20,
        latencies_ms=(15.0,),
        slowdowns=(1.0,),
        users=(2, 24),
        micro_batches_max=6,
    )


@pytest.fixture(scope="module")
def simulated(slow_link):
    return simulate_sweep(slow_link)


def test_each_crowd_is_tried_with_as_many_micro_batches_as_it_can_fill(simulated):
    fixed = [run.parameters for run in simulated.runs if "micro_batches" in run.parameters]
    assert [(one["users"], one["micro_batches"]) for one in fixed] == [
        (2, 1),
        (2, 2),
        (24, 1),
        (24, 2),
        (24, 3),
        (24, 4),
        (24, 5),
        (24, 6),
    ]
    assert all(run.figure("micro_batches") is not None for run in simulated.runs)


def test_one_micro_batch_takes_what_arithmetic_says(simulated):
    """24 rows of 8 KB on two of three links, three delays, and three steps of 6 to 7 ms.

    The message is longer than a bandwidth-delay product, so that it waits for a piece while the
    window is drained: 6 ms a hop, every other round.
    """
    [run] = simulated.only(users=24, micro_batches=1).runs
    expected_s = 2 * 24 * 8192 / (20 * 125_000) + 3 * 0.015 + 3 * 0.0065
    assert run.figure("tpot_s.mean") == pytest.approx(expected_s + 2 * 0.006 / 2, rel=0.03)


def test_more_pay_where_links_are_slow_and_users_are_many(simulated, slow_link):
    few, many = findings(simulated, slow_link.stages)
    assert (few.users, many.users) == (2, 24)
    assert many.sufficient > 1 and many.sufficient_s < 0.8 * many.one_s
    assert many.best_s <= many.sufficient_s <= 1.02 * many.best_s
    assert few.stages_s == simulated.only(users=2, micro_batches=2).runs[0].figure("tpot_s.mean")


def test_the_automatic_number_is_near_the_best(simulated, slow_link):
    for one in findings(simulated, slow_link.stages):
        assert one.auto_s < 1.1 * one.best_s


def test_a_round_added_up_from_profiles_is_the_one_that_comes(simulated, slow_link):
    """Two users go round as the model says; 24 wait for pieces of long messages beside that."""
    few, many = findings(simulated, slow_link.stages)
    assert abs(few.model_off) < 0.01
    assert -0.15 < many.model_off < 0.05


def test_a_round_is_added_up_by_hand():
    link = LinkSpec(20.0, 0.015)
    ring = even_ring("qwen-7b", "rtx4090", 3, link)
    steps = sum(stage.cost.step_s(DECODE, 12, 12 * 252, 12) for stage in ring.stages)
    by_hand = steps + 3 * 0.015 + 2 * 12 * ring.row_bytes / (20 * 125_000)
    assert modelled_s(ring, 24, 2) == pytest.approx(by_hand, rel=1e-6)


def test_slower_stages_take_as_many_times_as_long():
    quick, slow = (
        simulate_sweep(SweepSetting(latencies_ms=(0.0,), slowdowns=(factor,), users=(1,)))
        for factor in (1.0, 10.0)
    )
    assert slow.values("stage_ms")[0] == pytest.approx(10 * quick.values("stage_ms")[0], rel=0.02)
    ratio = slow.runs[0].figure("tpot_s.mean") / quick.runs[0].figure("tpot_s.mean")
    assert 9 < ratio < 10, "all but the wire"


def test_table_and_json_hold_every_finding(simulated, slow_link):
    found = findings(simulated, slow_link.stages)
    table = findings_table(found, slow_link.stages)
    assert len(table.rows) == 2 and all(len(row) == len(table.head) for row in table.rows)
    written = sweep_json(slow_link, simulated)
    assert [one["users"] for one in written["findings"]] == [2, 24]
    assert len(written["runs"]) == 10 and written["setting"]["bandwidth_mbps"] == 20


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"latencies_ms": ()}, "1 to 8 different latencies"),
        ({"latencies_ms": (-1.0,)}, "latencies of 0 to 1000"),
        ({"latencies_ms": (float("nan"),)}, "latencies"),
        ({"slowdowns": (0.0,)}, "slowdowns"),
        ({"slowdowns": (2.0, 2.0)}, "different"),
        ({"users": tuple(range(1, 10))}, "1 to 8 different users"),
        ({"users": (0,)}, "1 to 512"),
        ({"micro_batches_max": 0}, "--micro-batches-max"),
        ({"micro_batches_max": 65}, "up to 1 to 64"),
        ({"stages": 0}, "1 or more stages"),
    ],
)
def test_impossible_sweeps_are_refused_in_one_sentence(changes, words):
    with pytest.raises(UserError, match=words) as refusal:
        SweepSetting(**changes)
    assert "\n" not in str(refusal.value)
