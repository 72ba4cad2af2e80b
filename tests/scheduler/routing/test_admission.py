from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.admission import (
    NO_TARGETS,
    PROBED_AFTER,
    RETRY_S_MAX,
    TARGET_S_MIN,
    AdmissionPolicy,
    RingAdmission,
    Targets,
)
from molink_scheduler.routing.gap_times import KNOWN_GAPS, NO_GAPS, GapTimes
from molink_scheduler.routing.ring_forecast import RingPace, RingState, forecast_ttft_s

PACE = RingPace(
    prefill_tokens_per_s=1000.0, first_token_s=0.1, tpot_alone_s=0.05, tpot_each_s=0.005
)
IDLE = RingState(PACE)
WITHIN_2_S = Targets(ttft_s=2.0)
AT_100_MS = Targets(tpot_s=0.1)


def with_waiting(tokens: int) -> RingState:
    return replace(IDLE, waiting_tokens=tokens, waiting_requests=1)


def test_who_would_wait_too_long_is_refused_until_enough_is_done():
    verdict = RingAdmission().decide(with_waiting(5000), 900, WITHIN_2_S)
    assert not verdict.admitted
    assert not verdict.hopeless
    # 0.1 + 5.0 + 0.9 s, which are to become nine tenths of 2 s.
    assert abs(verdict.retry_after_s - 4.2) < 1e-9


def test_who_comes_back_then_is_taken():
    admission = RingAdmission()
    retry_s = admission.decide(with_waiting(5000), 900, WITHIN_2_S).retry_after_s
    left = 5000 - int(1000 * (retry_s + 0.01))
    assert admission.decide(with_waiting(left), 900, WITHIN_2_S).admitted


def test_after_a_refusal_only_who_has_room_to_spare_is_taken():
    admission, near = RingAdmission(), with_waiting(950)  # 1.95 s with a prompt of 900.
    assert admission.decide(near, 900, WITHIN_2_S).admitted
    assert not admission.decide(with_waiting(1100), 900, WITHIN_2_S).admitted
    assert not admission.decide(near, 900, WITHIN_2_S).admitted
    assert admission.decide(with_waiting(500), 900, WITHIN_2_S).admitted
    assert admission.decide(near, 900, WITHIN_2_S).admitted


def test_an_idle_ring_takes_who_would_never_have_room_to_spare():
    """1.95 s of 2 s, without anybody else: nothing would ever become of waiting."""
    admission = RingAdmission()
    assert not admission.decide(with_waiting(5000), 1850, WITHIN_2_S).admitted
    assert not admission.decide(with_waiting(1), 1850, WITHIN_2_S).admitted
    assert admission.decide(IDLE, 1850, WITHIN_2_S).admitted
    assert admission.decide(with_waiting(1), 1850, WITHIN_2_S).admitted


def test_a_prompt_that_no_ring_could_compute_in_time_makes_nobody_else_wait():
    admission, near = RingAdmission(), with_waiting(950)
    verdict = admission.decide(near, 8000, WITHIN_2_S)
    assert verdict.hopeless
    assert verdict.retry_after_s == RETRY_S_MAX
    assert admission.decide(near, 900, WITHIN_2_S).admitted


def test_refusing_low_priorities_leaves_high_ones_their_target():
    admission, near = RingAdmission(), with_waiting(950)
    assert not admission.decide(with_waiting(5000), 900, WITHIN_2_S, priority=5).admitted
    assert admission.decide(near, 900, WITHIN_2_S, priority=0).admitted
    assert not admission.decide(near, 900, WITHIN_2_S, priority=5).admitted


def test_a_pace_is_forecast_for_when_the_prompt_is_computed():
    many = replace(IDLE, waiting_tokens=12_000, waiting_requests=12, decoding=1, answer_tokens=2000)
    assert RingAdmission(AdmissionPolicy.EARLY).decide(many, 1000, AT_100_MS).admitted
    assert not RingAdmission(AdmissionPolicy.PREDICTED).decide(many, 1000, AT_100_MS).admitted


def test_answers_that_will_have_ended_refuse_nobody():
    ending = replace(IDLE, waiting_tokens=20_000, waiting_requests=1, decoding=12, answer_tokens=60)
    assert not RingAdmission(AdmissionPolicy.EARLY).decide(ending, 1000, AT_100_MS).admitted
    assert RingAdmission(AdmissionPolicy.PREDICTED).decide(ending, 1000, AT_100_MS).admitted


def test_the_baseline_looks_at_the_pace_when_the_prompt_has_been_computed():
    admission, full = RingAdmission(AdmissionPolicy.BASELINE), replace(IDLE, decoding=12)
    assert admission.decide(full, 100, AT_100_MS).admitted
    assert not admission.goes_on(full, AT_100_MS)
    assert admission.goes_on(replace(IDLE, decoding=10), AT_100_MS)
    assert RingAdmission(AdmissionPolicy.PREDICTED).goes_on(full, AT_100_MS)


# -- targets of single gaps -----------------------------------------------------------------------


def stuttering(part: float = 0.02, times: float = 6.0) -> GapTimes:
    """Gaps of which so many are so many times the pace, at every load."""
    gaps = GapTimes()
    for number in range(2 * KNOWN_GAPS):
        for others in range(4):
            gaps.add(others, times if number % 100 < 100 * part else 1.0)
    return gaps


def test_who_would_get_gaps_that_a_mean_hides_is_refused():
    ring = replace(IDLE, decoding=3, gaps=stuttering())
    assert RingAdmission().decide(ring, 100, AT_100_MS).admitted
    verdict = RingAdmission().decide(ring, 100, Targets(tbt_s=0.1))
    assert not verdict.admitted
    assert abs(verdict.tbt_s / verdict.tpot_s - 6) < 0.2


def test_a_target_of_a_lower_percentile_bears_them():
    ring = replace(IDLE, decoding=3, gaps=stuttering())
    assert RingAdmission().decide(ring, 100, Targets(tbt_s=0.1, tbt_percentile=90)).admitted


def test_both_targets_are_kept():
    even = replace(IDLE, decoding=3, gaps=stuttering(times=1.0))
    assert RingAdmission().decide(even, 100, Targets(tpot_s=0.1, tbt_s=0.1)).admitted
    assert not RingAdmission().decide(even, 100, Targets(tpot_s=0.06, tbt_s=0.1)).admitted
    assert not RingAdmission().decide(even, 100, Targets(tpot_s=0.1, tbt_s=0.06)).admitted


def test_without_gaps_that_have_told_the_pace_stands_for_them():
    ring = replace(IDLE, decoding=3, gaps=NO_GAPS)
    verdict = RingAdmission().decide(ring, 100, Targets(tbt_s=0.1))
    assert verdict.admitted and verdict.tbt_s == verdict.tpot_s


def test_a_target_below_the_round_is_hopeless_and_named_by_the_pace_alone():
    verdict = RingAdmission().decide(replace(IDLE, decoding=3), 100, Targets(tbt_s=0.03))
    assert verdict.hopeless and verdict.alone_s == PACE.tpot_alone_s


def test_an_idle_ring_takes_one_now_and_then_to_see_whether_it_stutters_still():
    admission, ring = RingAdmission(), replace(IDLE, gaps=stuttering())
    taken = [admission.decide(ring, 100, Targets(tbt_s=0.1)).admitted for _ in range(24)]
    assert [at for at, one in enumerate(taken) if one] == [
        PROBED_AFTER * one - 1 for one in (1, 2, 3)
    ]


def test_it_takes_none_to_see_whose_pace_misses_too_or_while_others_decode():
    admission, gaps = RingAdmission(), stuttering()
    for ring, targets in (
        (replace(IDLE, gaps=gaps), Targets(tbt_s=0.03)),
        (replace(IDLE, gaps=gaps, decoding=1), Targets(tbt_s=0.1)),
    ):
        verdicts = [admission.decide(ring, 100, targets) for _ in range(3 * PROBED_AFTER)]
        assert not any(one.admitted for one in verdicts)
        assert verdicts[0].hopeless


def test_the_baseline_looks_at_gaps_when_the_prompt_has_been_computed():
    admission, ring = (
        RingAdmission(AdmissionPolicy.BASELINE),
        replace(IDLE, decoding=3, gaps=stuttering()),
    )
    assert admission.decide(ring, 100, Targets(tbt_s=0.1)).admitted
    assert not admission.goes_on(ring, Targets(tbt_s=0.1))
    assert admission.goes_on(ring, Targets(tbt_s=0.5))


def test_a_request_has_its_own_target_of_gaps_at_the_operators_percentile():
    operator = Targets(tpot_s=0.2, tbt_percentile=90.0)
    assert Targets(tbt_s=0.1).or_else(operator) == Targets(None, 0.2, 0.1, 90.0)
    assert operator.are_set and not Targets(tbt_percentile=90.0).are_set


def test_milliseconds_that_are_no_seconds_are_not_rounded_to_zero():
    assert Targets.of_ms(None, 5e-324, 80.0, 95.0) == Targets(None, TARGET_S_MIN, 0.08, 95.0)


STATES = st.builds(
    RingState,
    st.just(PACE),
    st.integers(0, 20_000),
    st.integers(0, 32),
    st.integers(0, 32),
    st.integers(0, 3000),
    st.floats(1, 1000),
)
TARGETS = st.builds(
    Targets,
    st.none() | st.floats(0.05, 20),
    st.none() | st.floats(0.01, 1, exclude_min=True),
    st.none() | st.floats(0.01, 1, exclude_min=True),
)
REQUESTS = st.lists(
    st.tuples(STATES, st.integers(1, 5000), TARGETS, st.integers(-3, 3)), max_size=30
)


@given(REQUESTS, st.sampled_from(AdmissionPolicy))
def test_who_is_taken_meets_the_targets_and_who_is_not_is_told_when(requests, policy):
    admission = RingAdmission(policy)
    for ring, prompt_tokens, targets, priority in requests:
        verdict = admission.decide(ring, prompt_tokens, targets, priority)
        share = targets.missed_by(*verdict.seconds)
        if not verdict.admitted:
            assert policy is not AdmissionPolicy.ACCEPT
            assert share >= 0.9
            assert 1 <= verdict.retry_after_s <= RETRY_S_MAX
        elif policy in (AdmissionPolicy.EARLY, AdmissionPolicy.PREDICTED):
            assert share <= 1


@given(REQUESTS)
def test_without_targets_nobody_is_refused(requests):
    admission = RingAdmission()
    assert all(admission.decide(ring, one, NO_TARGETS).admitted for ring, one, _, _ in requests)


@given(STATES, st.integers(1, 5000), st.integers(0, 20_000))
def test_a_retry_is_the_later_the_more_waits(ring, prompt_tokens, more):
    busier = replace(ring, waiting_tokens=ring.waiting_tokens + more)
    first, second = (
        RingAdmission().decide(one, prompt_tokens, WITHIN_2_S) for one in (ring, busier)
    )
    assert forecast_ttft_s(ring, prompt_tokens) <= forecast_ttft_s(busier, prompt_tokens)
    assert first.retry_after_s <= second.retry_after_s
