"""The codec of a ring: int8 only where it was measured to be harmless, and always a reason."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.codec_choice import (
    AGREEMENT_MIN,
    CODEC_CHOICES,
    LOGITS_ERROR_MAX,
    TIME_SAVED_MIN,
    TOKENS_MIN,
    CodecCheck,
    CodecDecision,
    LosslessTrial,
    choose_codec,
)

GOOD = CodecCheck("int8", 0.9989, 8e-4, 2000)
SLOW_LINK = LosslessTrial(0.7, 500e6, 1500e6, 20e6 / 8)

rates = st.floats(1e3, 1e12)
checks = st.builds(
    CodecCheck,
    st.sampled_from(["int8", "fp8"]),
    st.floats(0, 1),
    st.floats(0, 1) | st.just(math.nan) | st.just(math.inf),
    st.integers(0, 10_000),
)
trials = st.builds(LosslessTrial, st.floats(0.01, 1.2), rates, rates, rates)


def test_auto_takes_int8_when_its_check_passes():
    assert choose_codec("auto", GOOD, SLOW_LINK) == CodecDecision(
        "int8",
        "int8 passed its check: it kept 99.89% of greedy tokens with a logits error of 8.0e-04.",
        True,
    )


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (None, "not checked"),
        (CodecCheck("fp8", 1.0, 0.0, 2000), "not checked"),
        (CodecCheck("int8", 0.978, 8e-4, 2000), "97.80%"),
        (CodecCheck("int8", 1.0, 1.5e-2, 2000), "1.5e-02"),
        (CodecCheck("int8", 1.0, math.nan, 2000), "nan"),
        (CodecCheck("int8", 1.0, 0.0, TOKENS_MIN - 1), "255 of 256"),
    ],
)
def test_auto_falls_back_and_says_why(check, why):
    decision = choose_codec("auto", check, SLOW_LINK)
    assert decision.codec == "lossless" and why in decision.reason
    assert decision.check_passed is (False if check and check.codec == "int8" else None)


def test_lossless_is_for_links_slower_than_the_processor():
    bad = CodecCheck("int8", 0.5, 1.0, 2000)
    fast_link = LosslessTrial(0.7, 500e6, 1500e6, 10e9 / 8)
    incompressible = LosslessTrial(0.99, 500e6, 1500e6, 20e6 / 8)
    assert choose_codec("auto", bad, SLOW_LINK).codec == "lossless"
    assert choose_codec("auto", bad, fast_link).codec == "raw"
    assert choose_codec("auto", bad, incompressible).codec == "raw"
    assert choose_codec("auto", bad).codec == "raw"


def test_the_reason_tells_what_lossless_does_to_the_link():
    bad = CodecCheck("int8", 0.5, 1.0, 2000)
    reason = choose_codec("auto", bad, SLOW_LINK).reason
    assert reason.endswith(
        "lossless makes 0.70 of the bytes and, with the time to pack and unpack them, saves 29% of "
        "the time that a link of 20 Mbps takes."
    )
    fast = choose_codec("auto", bad, LosslessTrial(0.7, 500e6, 1500e6, 4e9 / 8)).reason
    assert "costs 103% of the time that a link of 4,000 Mbps takes, where it must save" in fast


@pytest.mark.parametrize("wanted", CODEC_CHOICES[1:])
def test_what_a_user_names_is_used(wanted):
    assert choose_codec(wanted, None).codec == wanted


def test_a_named_codec_that_fails_its_check_says_so():
    decision = choose_codec("int8", CodecCheck("int8", 0.5, 1e-4, 2000))
    assert decision.codec == "int8" and decision.check_passed is False
    assert "failed" in decision.reason and "50.00%" in decision.reason


def test_the_thresholds_themselves_pass():
    assert CodecCheck("int8", AGREEMENT_MIN, LOGITS_ERROR_MAX, TOKENS_MIN).passed


@given(st.sampled_from(CODEC_CHOICES), st.none() | checks, st.none() | trials)
def test_every_decision_is_sound(wanted, check, trial):
    decision = choose_codec(wanted, check, trial)
    assert decision.codec in CODEC_CHOICES[1:]
    assert decision.reason.endswith(".") and "\n" not in decision.reason
    if wanted == "auto":
        int8_passed = check is not None and check.codec == "int8" and check.passed
        assert (decision.codec == "int8") == int8_passed
        if decision.codec == "lossless":
            assert trial.time_saved >= TIME_SAVED_MIN


@pytest.mark.parametrize("wanted", ["", "zip", "INT8"])
def test_an_unknown_wish_is_refused(wanted):
    with pytest.raises(ValueError, match="must be one of auto, raw"):
        choose_codec(wanted, GOOD)


@pytest.mark.parametrize(("agreement", "tokens"), [(1.1, 1), (-0.1, 1), (math.nan, 1), (1, -1)])
def test_an_impossible_check_is_refused(agreement, tokens):
    with pytest.raises(ValueError):
        CodecCheck("int8", agreement, 0.0, tokens)


@pytest.mark.parametrize("figures", [(0, 1, 1, 1), (0.5, 0, 1, 1), (0.5, 1, 1, math.nan)])
def test_an_impossible_trial_is_refused(figures):
    with pytest.raises(ValueError):
        LosslessTrial(*figures)
