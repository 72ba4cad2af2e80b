from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.admission import (
    NO_TARGETS,
    RETRY_S_MAX,
    AdmissionPolicy,
    RingAdmission,
    Targets,
)
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
    Targets, st.none() | st.floats(0.05, 20), st.none() | st.floats(0.01, 1, exclude_min=True)
)
REQUESTS = st.lists(
    st.tuples(STATES, st.integers(1, 5000), TARGETS, st.integers(-3, 3)), max_size=30
)


@given(REQUESTS, st.sampled_from(AdmissionPolicy))
def test_who_is_taken_meets_the_targets_and_who_is_not_is_told_when(requests, policy):
    admission = RingAdmission(policy)
    for ring, prompt_tokens, targets, priority in requests:
        verdict = admission.decide(ring, prompt_tokens, targets, priority)
        share = targets.missed_by(verdict.ttft_s, verdict.tpot_s)
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
