"""What stages do ahead of time comes out as if everything happened in its time."""

from dataclasses import replace

import pytest

from molink_sim.even_ring import even_ring
from molink_sim.outcome import Outcome
from molink_sim.ring.foresight import ForeseeingStage, can_foresee
from molink_sim.scenario import (
    Arrival,
    LinkChange,
    LinkSpec,
    OnePc,
    RingSpec,
    Scenario,
    SlowNode,
    SystemSpec,
)
from molink_sim.simulate import World
from molink_sim.swarm import swarm_scenario
from molink_sim.workload import generate

IDEAL = SystemSpec(link_model="ideal")


def outcome(scenario: Scenario, *, foresight: bool) -> Outcome:
    world = World(scenario, foresight=foresight)
    world.run()
    return world.outcome()


def plain(ring: RingSpec) -> RingSpec:
    """Its links stay as they are."""
    links = tuple(replace(one, jitter_s=0.0, loss=0.0, changes=()) for one in ring.links)
    return replace(ring, links=links)


def small_world(seed: int) -> Scenario:
    """A crowded world of the swarm, on ideal links."""
    found = swarm_scenario(seed, ())
    system = replace(found.system, name="molink", link_model="ideal", paced=True)
    system = replace(system, prefill_blocks_decode=False, policy="molink")
    return replace(found, rings=tuple(map(plain, found.rings)), system=system)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_small_worlds_come_out_the_same_to_the_bit(first):
    for seed in range(first, first + 20):
        scenario = small_world(seed)
        ahead, in_time = (outcome(scenario, foresight=one) for one in (True, False))
        assert replace(ahead, events=0) == replace(in_time, events=0), f"seed {seed}"


@pytest.mark.parametrize("micro_batches", [5, None])
@pytest.mark.parametrize("gpu, one_way_s", [("rtx4090", 0.03), ("rtx3060", 0.001)])
def test_a_long_ring_comes_out_the_same_with_far_fewer_events(micro_batches, gpu, one_way_s):
    """Short delays and slow devices make queues at the stages, and prefill that is interrupted."""
    ring = even_ring("qwen-7b", gpu, 10, LinkSpec(100, one_way_s))
    system = replace(IDEAL, micro_batches=micro_batches)
    scenario = Scenario((ring,), generate(1.5, 10, 3), system, duration_s=10)
    ahead, in_time = (outcome(scenario, foresight=one) for one in (True, False))
    assert replace(ahead, events=0) == replace(in_time, events=0)
    assert ahead.events < 0.6 * in_time.events


def test_all_but_the_head_foresee(plain_ring):
    world = World(Scenario((plain_ring(3),), [Arrival(0, 64, 4)], IDEAL, duration_s=5))
    kinds = [isinstance(stage, ForeseeingStage) for stage in world.rings[0].stages]
    assert kinds == [False, True, True]


def test_nobody_foresees_where_something_may_go_wrong_or_bars_are_drawn(plain_ring):
    scenario = Scenario((plain_ring(3),), [Arrival(0, 64, 4)], IDEAL, duration_s=5)
    slow = SlowNode(0, 1, 1.0, 2.0, factor=3.0)
    for changes in ({"faults": (slow,)}, {"record_timeline": True}):
        stages = World(replace(scenario, **changes)).rings[0].stages
        assert not any(isinstance(stage, ForeseeingStage) for stage in stages)


def test_only_ideal_links_that_stay_as_they_are_are_foreseen(plain_ring):
    ring = plain_ring(3)
    assert can_foresee(IDEAL, ring)
    assert not can_foresee(replace(IDEAL, link_model="paced"), ring)
    assert not can_foresee(IDEAL, replace(ring, on_one_pc=OnePc((1.0, 1.5))))
    for trouble in ({"jitter_s": 0.01}, {"loss": 0.01}, {"changes": (LinkChange(2, 10, 0.1),)}):
        links = (replace(ring.links[0], **trouble), *ring.links[1:])
        assert not can_foresee(IDEAL, replace(ring, links=links))
    woken = replace(ring.stages[1], after_idle=((0.1, 0.001),))
    assert not can_foresee(IDEAL, replace(ring, stages=(ring.stages[0], woken, ring.stages[2])))
