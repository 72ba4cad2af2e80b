"""What a ring counts with of room that lenders bring, and what who takes a place in it needs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.coordinator.ring.lent_room import (
    counted,
    grown_terms,
    lent_stages,
    own_least,
    own_tokens,
)
from molink.coordinator.ring.room_watch import terms_now
from molink.stage_protocol.health import LenderHealth
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.capacity import Offer
from molink_scheduler.routing.ring_forecast import LentStage
from tests.coordinator.upkeep.world import LOADED

TERMS = RingTerms(kv_tokens_capacity=640)


def stage(offer: int, loaded: int = 40, requests_max=None, planned=None, lease=None):
    """A stage that offers blocks; `loaded`: blocks that it has loaded."""
    return SimpleNamespace(
        offer=Offer(int(offer != loaded), offer),
        loaded=StageLoaded(
            **LOADED | {"kv_tokens_capacity": 16 * loaded, "requests_max": requests_max}
        ),
        work=SimpleNamespace(kv_tokens=planned, lan_lease=lease),
    )


def test_what_a_lease_brings_is_counted_only_on_terms_that_bound_the_requests():
    lent = stage(100)
    wide = replace(TERMS, kv_tokens_most=1600)
    assert counted(lent, wide).blocks == 40
    assert counted(lent, replace(wide, requests_max=7)).blocks == 40
    assert counted(lent, replace(wide, requests_max=6)) == Offer(1, 100)


def test_no_more_is_counted_than_a_request_may_have():
    assert counted(stage(100, requests_max=3), replace(TERMS, requests_max=3)).blocks == 40


def test_a_stage_whose_lender_is_lost_is_counted_with_what_is_left():
    lost = stage(25, loaded=40, requests_max=4)
    now = terms_now(replace(TERMS, requests_max=4), [lost, stage(40)])
    assert (now.kv_tokens_capacity, now.kv_tokens_most) == (400, 640)


def test_one_that_takes_a_place_with_its_own_room_alone_is_counted_with_that():
    now = terms_now(replace(TERMS, requests_max=4), [stage(25, loaded=25), stage(40)])
    assert (now.kv_tokens_capacity, now.tokens_most) == (400, 640)


@pytest.mark.parametrize(("bound", "wanted"), [(None, 6), (4, 4), (9, 6)])
def test_terms_grow_with_the_least_of_the_stages(bound, wanted):
    stages = [stage(100), stage(50, loaded=50, requests_max=bound)]
    grown = grown_terms(replace(TERMS, requests_max=bound), stages)
    assert (grown.kv_tokens_capacity, grown.requests_max) == (800, wanted)
    assert grown_terms(grown, stages) is None
    assert grown_terms(TERMS, [stage(100), stage(40)]) is None


def test_who_takes_a_place_needs_no_more_than_others_have_without_their_leases():
    leased = stage(120, loaded=120, requests_max=4, planned=500, lease=object())
    assert own_tokens(leased) == 512
    assert own_tokens(stage(60, loaded=60, requests_max=4, planned=500)) == 960
    assert own_least([leased, stage(80, loaded=80)], 1920) == 512
    assert own_least([stage(80, loaded=80)], 640) == 640


def reporting(offer: int, lender: LenderHealth | None, trip_s: float = 0.0):
    """A stage of ten layers that tells this of its lender."""
    told = {"health": SimpleNamespace(lender=lender), "layers": (4, 14), "lender_trip_s": trip_s}
    return SimpleNamespace(**vars(stage(offer)) | told)


def test_steps_wait_as_long_as_stages_tell_and_before_that_a_round_trip_a_layer():
    told = LenderHealth(640, 320, 0.003, 2e-7)
    stages = [
        reporting(100, told, 0.0005),
        reporting(100, replace(told, step_wait_s=0.0), 0.0005),
        reporting(40, told),
        reporting(100, None),
        SimpleNamespace(**vars(stage(100)) | {"health": None}),
    ]
    assert lent_stages(stages) == (LentStage(640, 0.003, 2e-7), LentStage(640, 0.005, 2e-7))
