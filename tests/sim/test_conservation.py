"""What must hold of every run, whatever the system, the links and the load."""

import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from molink_sim.scenario import LinkChange, LinkSpec, RequestArrival, Scenario
from molink_sim.simulate import World
from molink_sim.systems import SYSTEMS, system_named
from tests.sweeps import crossed

POLICIES = ["molink", "just_in_time", "paper", "quantum", "fifo", "fair"]


def arrivals_from(seed, count, mean_gap_s=0.7):
    source, at_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += source.expovariate(1 / mean_gap_s)
        found.append(RequestArrival(at_s, source.randint(1, 600), source.randint(1, 40)))
    return found


def check(world):
    outcome = world.outcome()
    for request in outcome.requests:
        assert request.finished, f"request {request.number} did not end"
        assert len(request.token_times_s) == request.output_tokens
        assert request.arrived_s < request.token_times_s[0]
        assert all(a <= b for a, b in pairwise(request.token_times_s))
    for ring in world.rings:
        scheduler = ring.stages[0].core.source
        assert not getattr(scheduler, "running_count", 0)
        assert not getattr(scheduler, "waiting_count", 0)
        assert not ring.stages[-1].tail._left, "the tail forgets who has gone"
    for place in (*outcome.stages, *outcome.links):
        assert 0 <= place.busy_share <= 1
    return outcome


def run(ring, arrivals, system, **more):
    world = World(Scenario((ring,), arrivals, system, duration_s=100, drain_s=4000, **more))
    world.run()
    return world


@pytest.mark.parametrize("name, kv_tokens", crossed(list(SYSTEMS), [4000, 100_000]))
def test_every_request_ends_once_with_its_tokens_in_order(plain_ring, name, kv_tokens):
    check(run(plain_ring(kv_tokens=kv_tokens), arrivals_from(1, 60), system_named(name)))


@pytest.mark.parametrize("policy, paced", crossed(POLICIES, [True, False]))
def test_policies_lose_nothing_paced_or_not(plain_ring, policy, paced):
    system = system_named("molink", policy=policy, paced=paced)
    check(run(plain_ring(mbps=30), arrivals_from(2, 40), system))


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate),  # A run takes a second: shrinking would take an hour.
)
@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 5),
    mbps=st.sampled_from([10, 100, 1000]),
    jitter_s=st.sampled_from([0.0, 0.01]),
    loss=st.sampled_from([0.0, 0.05]),
    link_model=st.sampled_from(["paced", "ideal"]),
    upload_mbps=st.sampled_from([None, 8.0]),
    micro_batches=st.sampled_from([None, 1, 4]),
)
def test_hostile_links_only_delay(
    plain_ring, seed, stages, mbps, jitter_s, loss, link_model, upload_mbps, micro_batches
):
    changes = (LinkChange(5, mbps / 5, 0.05), LinkChange(9, 0, 0.02), LinkChange(12, mbps, 0.01))
    link = LinkSpec(mbps, 0.02, jitter_s, loss, changes)
    ring = plain_ring(stages, links=(link,) * stages, upload_mbps=upload_mbps, kv_tokens=4000)
    system = system_named("molink", link_model=link_model, micro_batches=micro_batches)
    check(run(ring, arrivals_from(seed, 20), system, seed=seed))


@pytest.mark.parametrize("name", ["molink", "vllm", "helix", "paper"])
def test_bytes_on_the_links_are_the_rows_that_crossed(plain_ring, name):
    arrivals = arrivals_from(3, 30)
    system = system_named(name)
    outcome = check(run(plain_ring(), arrivals, system))
    rows = sum(arrival.input_tokens + arrival.output_tokens - 1 for arrival in arrivals)
    for link in outcome.links[:-1]:
        activations = rows * 8192 * system.tensors_per_hop
        assert activations <= link.bytes <= 1.03 * activations


def test_the_timeline_never_shows_a_stage_doing_two_things(plain_ring):
    world = run(plain_ring(), arrivals_from(4, 30), system_named("molink"), record_timeline=True)
    outcome = check(world)
    for lane in {activity.lane for activity in outcome.timeline}:
        bars = sorted((a.start_s, a.end_s) for a in outcome.timeline if a.lane == lane)
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(bars)), lane


def mean(values):
    return sum(values) / len(values)


@pytest.mark.parametrize(
    "link, micro_batches", crossed([(100, 0.03), (50, 0.01), (400, 0.05)], [1, 3])
)
def test_the_ideal_link_agrees_with_the_paced_one(plain_ring, link, micro_batches):
    """On the ideal link decode waits for a piece of prefill: nothing stops for steps under way."""
    found = []
    for link_model in ("paced", "ideal"):
        system = system_named("molink", link_model=link_model, micro_batches=micro_batches)
        outcome = check(run(plain_ring(3, *link), arrivals_from(5, 80, 1.2), system))
        ttft_s = mean([r.token_times_s[0] - r.arrived_s for r in outcome.requests])
        latency_s = mean([r.token_times_s[-1] - r.token_times_s[0] for r in outcome.requests])
        found.append((ttft_s, latency_s))
    (paced_ttft_s, paced_s), (ideal_ttft_s, ideal_s) = found
    assert ideal_ttft_s == pytest.approx(paced_ttft_s, rel=0.06)
    assert ideal_s == pytest.approx(paced_s, rel=0.06)
