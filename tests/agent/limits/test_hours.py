"""Hours of the week: what is open when, and what is refused."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_agent.limits.hours import (
    DAY_MINUTES,
    DAYS,
    WEEK_MINUTES,
    LendingHours,
    is_open,
    next_change,
)

MONDAY = datetime(2026, 3, 2)
"""Midnight."""

MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31))


@st.composite
def entries(draw) -> LendingHours:
    start = draw(st.integers(0, DAY_MINUTES - 1))
    end = draw(st.integers(0, DAY_MINUTES).filter(lambda minute: minute != start))
    days = draw(st.sampled_from(["", "mon ", "sun ", "sat-sun ", "fri-mon ", "mon-fri "]))
    return LendingHours.parse(f"{days}{clock(start)}-{clock(end)}")


def clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def at(day: str, time: str) -> datetime:
    hour, minute = time.split(":")
    return MONDAY + timedelta(days=DAYS.index(day), hours=int(hour), minutes=int(minute))


@pytest.mark.parametrize(
    "text, moment, lent",
    [
        ("18:00-02:00", at("wed", "17:59"), False),
        ("18:00-02:00", at("wed", "18:00"), True),
        ("18:00-02:00", at("wed", "01:59"), True),
        ("18:00-02:00", at("wed", "02:00"), False),
        ("sat-sun 10:00-23:00", at("sat", "10:00"), True),
        ("sat-sun 10:00-23:00", at("mon", "10:00"), False),
        ("sun 22:00-06:00", at("mon", "05:59"), True),
        ("sun 22:00-06:00", at("sun", "05:59"), False),
        ("fri-mon 09:00-10:00", at("sun", "09:30"), True),
        ("fri-mon 09:00-10:00", at("tue", "09:30"), False),
        ("00:00-24:00", at("sun", "23:59"), True),
        ("00:00-00:30", at("mon", "00:30"), False),
    ],
)
def test_what_is_open(text, moment, lent):
    assert is_open((LendingHours.parse(text),), moment) is lent


def test_without_entries_all_hours_are_lent():
    assert is_open((), MONDAY)
    assert next_change((), MONDAY) is None


def test_the_whole_week_never_changes():
    assert next_change((LendingHours.parse("00:00-24:00"),), MONDAY) is None


def test_entries_that_touch_are_one():
    hours = tuple(LendingHours.parse(text) for text in ("18:00-22:00", "22:00-02:00"))
    assert next_change(hours, at("tue", "19:30")) == at("wed", "02:00")


@pytest.mark.parametrize(
    "text, says",
    [
        ("18-02", "is not of that form"),
        ("18:00 to 02:00", "is not of that form"),
        ("", "is not of that form"),
        ("25:00-26:00", "25:00 is not a time of day"),
        ("18:60-19:00", "18:60 is not a time of day"),
        ("18:00-18:00", "write 00:00-24:00"),
        ("24:00-02:00", "write 00:00"),
        ("mon-fry 18:00-19:00", "'fry' is not a day"),
        ("mon,tue 18:00-19:00", "is not of that form"),
    ],
)
def test_what_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        LendingHours.parse(text)


@settings(max_examples=25)
@given(st.lists(entries(), min_size=1, max_size=3), MOMENTS)
def test_the_next_change_is_the_first_minute_that_differs(hours, moment):
    hours = tuple(hours)
    minute = moment.replace(second=0, microsecond=0)
    now = is_open(hours, moment)
    steps = range(1, WEEK_MINUTES + 1)
    expected = next(
        (n for n in steps if is_open(hours, minute + timedelta(minutes=n)) != now), None
    )
    found = next_change(hours, moment)
    assert found == (None if expected is None else minute + timedelta(minutes=expected))


@settings(max_examples=25)
@given(entries())
def test_an_entry_lends_its_minutes_on_each_of_its_days(entry):
    lent = sum(entry.contains(minute) for minute in range(WEEK_MINUTES))
    assert lent == entry.minutes * len(entry.days)


@given(entries())
def test_the_text_is_what_is_read_back(entry):
    assert LendingHours.parse(entry.text) == entry
