from dataclasses import replace

from hypothesis import given

from molink_scheduler.routing.ring_choice import HOME_TIMES, Routing, choose_ring
from molink_scheduler.routing.ring_forecast import forecast_ttft_s
from molink_scheduler.routing.session_homes import SESSIONS_MAX, SessionHomes
from tests.scheduler.routing.test_ring_choice import ALL_STATES, IDLE


def test_a_session_stays_on_its_ring_though_another_would_begin_sooner():
    home = replace(IDLE, waiting_tokens=500, is_home=True)
    assert choose_ring(Routing.MOLINK, [IDLE, home], 1000, 10) == 1


def test_a_session_leaves_a_ring_that_is_much_busier():
    home = replace(IDLE, waiting_tokens=3000, is_home=True)
    assert choose_ring(Routing.MOLINK, [IDLE, home], 1000, 10) == 0


@given(ALL_STATES)
def test_a_home_costs_a_request_no_more_than_its_multiple(rings):
    rings = [replace(ring, waiting_requests=0) for ring in rings]
    rings[-1] = replace(rings[-1], is_home=True)
    chosen = choose_ring(Routing.MOLINK, rings, 500, 10)
    least_s = min(forecast_ttft_s(ring, 500) for ring in rings)
    assert forecast_ttft_s(rings[chosen], 500) <= HOME_TIMES * least_s * (1 + 1e-9)


def test_the_last_ring_is_home_and_no_session_has_none():
    homes = SessionHomes()
    homes.went("chat", 3)
    homes.went("", 4)
    assert (homes.of("chat"), homes.of(""), homes.of("other")) == (3, None, None)
    homes.went("chat", 5)
    assert homes.of("chat") == 5


def test_the_session_that_asked_longest_ago_is_forgotten():
    homes = SessionHomes()
    for at in range(SESSIONS_MAX):
        homes.went(str(at), 1)
    homes.went("0", 2)
    homes.went("one more", 1)
    assert (homes.of("0"), homes.of("1"), homes.of("2")) == (2, None, 1)
