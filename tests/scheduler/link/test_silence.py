"""When a link is taken for dead, and what it is told to do: in virtual time, from what is known."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.link.silence import (
    LOST_S,
    RECONNECT_S,
    SILENT_ROUNDS,
    SILENT_S_MAX,
    SILENT_S_MIN,
    GiveUp,
    LinkSilence,
    Reconnect,
)

TICK_S = 0.1


@dataclass
class Known:
    """Of the chunks under way."""

    silent_since: float = 0.0
    ack_due_s: float = 0.1
    in_flight_bytes: int = 1000


def steps(silence: LinkSilence, known: Known, oldest: int | None, start: float, until: float):
    """(when, step) of a link that is looked at whenever it asks for it."""
    told, now = [], start
    while now < until:
        if now >= silence.check_at and (step := silence.check(oldest, known, now)) is not None:
            told.append((now, step))
        now += TICK_S
    return told


@given(st.floats(1e-3, 100.0))
def test_patience_follows_what_the_link_should_take_between_two_bounds(ack_due_s):
    (first, *_) = steps(LinkSilence(), Known(ack_due_s=ack_due_s), 5, 0.0, 20.0)
    expected = min(SILENT_S_MAX, max(SILENT_S_MIN, SILENT_ROUNDS * ack_due_s))
    assert expected <= first[0] <= expected + 2 * TICK_S
    assert first[1] == Reconnect(ask_for_path=False)


@pytest.mark.parametrize("lost_s", [LOST_S, 60.0])
def test_tries_come_apart_ask_for_other_ways_from_the_second_on_and_end(lost_s):
    told = steps(LinkSilence(lost_s), Known(), 5, 0.0, 100.0)
    *tries, (lost_at, last) = told
    assert isinstance(last, GiveUp) and last.silent_s >= lost_s
    assert [step.ask_for_path for _, step in tries] == [False] + [True] * (len(tries) - 1)
    assert all(b[0] - a[0] >= RECONNECT_S for a, b in itertools.pairwise(tries))
    assert len(tries) >= 6 and lost_at <= tries[0][0] + lost_s + 2 * TICK_S


@pytest.mark.parametrize("oldest", [6, None])
def test_an_acknowledgement_ends_the_silence(oldest):
    silence = LinkSilence()
    steps(silence, Known(), 5, 0.0, 20.0)
    assert silence.is_silent
    heard = Known(silent_since=22.0, in_flight_bytes=0 if oldest is None else 1000)
    assert steps(silence, heard, oldest, 20.0, 22.0 + SILENT_S_MIN) == []
    assert not silence.is_silent
    again = steps(silence, Known(silent_since=30.0), 9, 30.0, 100.0)
    assert again[0][1] == Reconnect(ask_for_path=False)
    assert again[-1][0] >= 30 + LOST_S


def test_what_is_repeated_without_an_answer_waits_longer_each_time():
    """A hello comes through, chunks do not: the silence begins anew with each repetition."""
    silence, known, told, now = LinkSilence(), Known(), [], 0.0
    while not (told and isinstance(told[-1][1], GiveUp)):
        assert now < 100
        if now >= silence.check_at and (step := silence.check(5, known, now)) is not None:
            told.append((now, step))
            known.silent_since = now
        now += TICK_S
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(told[:-1])]
    assert gaps == sorted(gaps) and len(gaps) >= 2


def test_nothing_under_way_is_no_silence():
    assert steps(LinkSilence(), Known(in_flight_bytes=0), None, 0.0, 100.0) == []


def test_a_link_that_was_not_looked_at_for_long_tries_before_it_is_given_up():
    """Its process was stopped: the first look finds a minute of silence."""
    told = steps(LinkSilence(), Known(), 5, 60.0, 60.0 + RECONNECT_S)
    assert [step for _, step in told] == [Reconnect(ask_for_path=False)]


def test_a_hello_that_is_not_answered_counts_like_a_chunk():
    idle, silence, told = Known(in_flight_bytes=0), LinkSilence(), []
    for tick in range(400):
        now = tick * TICK_S
        if now >= silence.check_at and (step := silence.check(None, idle, now, 5.0)) is not None:
            told.append((now, step))
    assert told[0][1] == Reconnect(ask_for_path=False)
    assert 5.0 + SILENT_S_MIN <= told[0][0] <= 5.0 + 2 * SILENT_S_MIN
    assert isinstance(told[-1][1], GiveUp)


def test_another_hello_without_an_answer_is_another_silence():
    idle, silence = Known(in_flight_bytes=0), LinkSilence()
    assert silence.check(None, idle, 10.0, 1.0) == Reconnect(ask_for_path=False)
    assert silence.check(None, idle, 40.0, 30.0) == Reconnect(ask_for_path=False), "no GiveUp"
