"""When was the PC last used, by input or by the GPU?"""

from hypothesis import given
from hypothesis import strategies as st

from molink_agent.probe.idle import (
    GPU_FREE_BELOW_PERCENT,
    GPU_USED_FROM_PERCENT,
    UNKNOWN_AFTER_S,
    IdleWatch,
)

ANSWERS = st.lists(
    st.tuples(
        st.floats(0.1, 60),
        st.one_of(st.none(), st.floats(0, 1e6)),
        st.one_of(st.none(), st.floats(0, 100)),
    ),
    max_size=30,
)


def test_before_any_answer_nobody_knows():
    watch = IdleWatch()
    watch.observe(5, None, 0)
    assert watch.idle_s(5) is None


def test_idle_time_grows_between_answers():
    watch = IdleWatch()
    watch.observe(100, 30)
    assert watch.idle_s(110) == 40


def test_a_film_counts_as_use():
    watch = IdleWatch()
    watch.observe(100, 5000, GPU_USED_FROM_PERCENT)
    assert watch.idle_s(160) == 60


def test_a_load_about_the_threshold_does_not_flap():
    watch = IdleWatch()
    between = (GPU_FREE_BELOW_PERCENT + GPU_USED_FROM_PERCENT) / 2
    watch.observe(100, 5000, between)
    assert watch.idle_s(100) == 5000
    watch.observe(120, 5000, GPU_USED_FROM_PERCENT)
    watch.observe(140, 5000, between)
    assert watch.idle_s(140) == 0
    watch.observe(160, 5000, 0)
    watch.observe(180, 5000, between)
    assert watch.idle_s(180) == 40


def test_missing_answers_are_borne_for_a_while():
    watch = IdleWatch()
    watch.observe(0, 600)
    watch.observe(UNKNOWN_AFTER_S, None)
    assert watch.idle_s(UNKNOWN_AFTER_S) == 600 + UNKNOWN_AFTER_S
    assert watch.idle_s(UNKNOWN_AFTER_S + 1) is None


@given(ANSWERS)
def test_idle_time_is_never_longer_than_the_input_says(answers):
    watch, now_s, told = IdleWatch(), 0.0, None
    for step_s, input_idle_s, percent in answers:
        now_s += step_s
        watch.observe(now_s, input_idle_s, percent)
        told = told if input_idle_s is None else (now_s, input_idle_s)
        idle_s = watch.idle_s(now_s)
        if idle_s is not None:
            assert told is not None
            assert 0 <= idle_s <= now_s - told[0] + told[1] + 1e-6
