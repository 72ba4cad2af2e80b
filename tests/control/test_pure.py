"""Backoff, heartbeats, topics to values."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.backoff import Backoff
from molink.control.heartbeats import Heartbeats
from molink.control.messages.topics import COORDINATOR, PRESENCE, UnreadableError, read_message
from tests.control.conftest import coordinator_presence, presence


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_waits_grow_and_stay_bounded(seed, failures):
    backoff = Backoff(0.5, 10.0, Random(seed))
    waits = [backoff.next_s() for _ in range(failures)]
    for number, wait_s in enumerate(waits):
        full_s = min(10.0, 0.5 * 2.0**number)
        assert full_s / 2 <= wait_s <= full_s
    backoff.reset()
    assert backoff.next_s() <= 0.5


def test_silence_is_told_once():
    beats = Heartbeats(silent_after_s=4)
    beats.beat("a", 0)
    beats.beat("b", 3)
    assert beats.fallen_silent(4) == []
    assert beats.fallen_silent(5) == ["a"]
    assert beats.fallen_silent(6) == []
    beats.beat("a", 7)
    beats.forget("b")
    assert beats.fallen_silent(11) == []
    assert beats.fallen_silent(11.1) == ["a"]


def test_a_topic_says_what_a_message_is():
    received = read_message(PRESENCE.of("n1"), presence().model_dump_json().encode(), True)
    assert (received.topic, received.node_id, received.message) == (PRESENCE, "n1", presence())
    assert received.retained
    told = read_message(COORDINATOR.path, coordinator_presence().model_dump_json().encode(), False)
    assert (told.topic, told.node_id) == (COORDINATOR, "")


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("molink/v1/node/n1/said/nothing", b"{}"),
        ("molink/v1/node/{node}/said/presence/more", b"{}"),
        ("elsewhere", b"{}"),
        ("", b""),
        (PRESENCE.of("n1"), b"\xff"),
        (PRESENCE.of("n1"), b"[]"),
        (PRESENCE.of("n1"), b'{"name": "x"}'),
    ],
)
def test_what_cannot_be_read_says_why(path, payload):
    with pytest.raises(UnreadableError):
        read_message(path, payload, False)
