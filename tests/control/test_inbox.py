"""What waits to be read, and whose turn it is: no clock but the test's."""

import asyncio
from dataclasses import dataclass

import pytest

from molink.control.inbox import MESSAGE_BYTES_MAX, NODE_BUDGET, SENDERS_MAX, Inbox
from molink.control.messages.topics import ALL_TOPICS, FACT, HEALTH, PRESENCE, PROFILE, WISH
from molink.coordinator.nodes.access import REPORT_TOPICS
from molink.token_bucket import TokenBucket
from tests.control.conftest import health, presence


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def inbox(clock):
    return Inbox(NODE_BUDGET, clock=clock)


def say(inbox, node, topic, message, *, retained=False):
    inbox.put(topic.of(node), message.model_dump_json().encode(), retained=retained)


def read(inbox):
    return [(one.node_id, one.topic) for one in inbox.read()]


def test_a_bucket_fills_with_time_up_to_its_burst_and_can_be_overdrawn():
    bucket = TokenBucket(rate_per_s=2.0, burst=10.0)
    assert bucket.level(5.0) == 10.0 and bucket.wait_s(5.0) == 0.0
    bucket.spend(16.0, 5.0)
    assert bucket.level(5.0) == -6.0 and bucket.wait_s(5.0) == 3.0
    assert bucket.level(6.0) == -4.0
    assert bucket.level(5.5) == -4.0, "a clock that lags gives nothing and takes nothing"
    assert bucket.level(100.0) == 10.0


def test_of_a_topic_only_the_last_message_waits(inbox):
    for name in ("first", "second"):
        say(inbox, "n1", PRESENCE, presence(name=name))
    say(inbox, "n1", HEALTH, health())
    (kept, _) = inbox.read()
    assert kept.message.name == "second" and read(inbox) == []


def test_who_exceeds_its_budget_waits_and_others_do_not(inbox, clock):
    for _ in range(80):
        say(inbox, "loud", PRESENCE, presence())
    say(inbox, "n1", PRESENCE, presence())
    assert read(inbox) == [("n1", PRESENCE)]
    clock.now += 30 / NODE_BUDGET.messages_per_s
    assert read(inbox) == [("loud", PRESENCE)], "what it said last is not lost"
    assert inbox.take_overdrawn() == []


def test_bytes_count_as_messages_do(inbox):
    for _ in range(10):
        inbox.put(PROFILE.of("loud"), b"x" * 60_000, retained=True)
    assert read(inbox) == [] and inbox.take_overdrawn() == []
    for _ in range(17):
        inbox.put(PROFILE.of("loud"), b"x" * 60_000, retained=True)
    assert inbox.take_overdrawn() == ["loud"]


def test_who_exceeds_it_by_far_is_named_once(inbox):
    for _ in range(160):
        say(inbox, "loud", PRESENCE, presence())
    assert inbox.take_overdrawn() == ["loud"]
    say(inbox, "loud", PRESENCE, presence())
    assert inbox.take_overdrawn() == []


def test_who_is_muted_is_not_heard_until_it_is_unmuted(inbox):
    say(inbox, "loud", PRESENCE, presence())
    inbox.mute("loud")
    say(inbox, "loud", WISH, health())
    assert read(inbox) == [] and inbox.dropped_count == 1
    inbox.unmute("loud")
    say(inbox, "loud", PRESENCE, presence())
    assert read(inbox) == [("loud", PRESENCE)]


def test_who_is_muted_and_goes_on_is_named_again(inbox):
    inbox.mute("loud")
    for _ in range(200):
        say(inbox, "loud", PRESENCE, presence())
    assert inbox.take_overdrawn() == ["loud"]
    assert inbox.heard == {}


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("molink/v1/node/n1/said/unknown", 2),
        ("molink/v1/node/n1", 2),
        ("molink/v1/coordinator/said/else", 2),
        ("", 2),
        (PRESENCE.of("n1"), NODE_BUDGET.message_bytes_max + 1),
    ],
)
def test_what_is_no_message_of_ours_does_not_wait(inbox, path, size):
    inbox.put(path, b"x" * size, retained=False)
    assert inbox.invalid_count == 1 and inbox.heard == {}


def test_when_a_node_was_heard_is_when_its_message_came(inbox, clock):
    say(inbox, "n1", HEALTH, health())
    say(inbox, "n2", HEALTH, health(), retained=True)
    came_at, clock.now = clock.now, clock.now + 60.0
    assert inbox.heard == {"n1": came_at}
    assert [one.arrived_s for one in inbox.read()] == [came_at, came_at]


def test_what_waits_is_bounded_by_its_bytes(clock):
    inbox = Inbox(waiting_bytes_max=1000, clock=clock)
    for number in range(3):
        inbox.put(PROFILE.of(f"n{number}"), b"x" * 400, retained=True)
    assert inbox.dropped_count == 1 and inbox.has_missed() and not inbox.has_missed()
    inbox.forget("n0")
    inbox.put(PROFILE.of("n2"), b"x" * 400, retained=True)
    assert inbox.dropped_count == 1


def test_names_of_senders_are_bounded(inbox):
    for number in range(SENDERS_MAX + 3):
        say(inbox, f"n{number}", PRESENCE, presence())
    assert inbox.dropped_count == 3 and len(read(inbox)) == SENDERS_MAX


def test_a_coordinator_may_say_what_it_likes(clock):
    inbox = Inbox(clock=clock)
    for _ in range(10_000):
        inbox.put(PRESENCE.of("n1"), b"x" * MESSAGE_BYTES_MAX, retained=True)
    assert inbox.take_overdrawn() == [] and inbox.invalid_count == 0


async def test_a_reader_is_woken_when_the_budget_allows_again(inbox, clock):
    for _ in range(51):
        say(inbox, "n1", PRESENCE, presence())
    reading = asyncio.ensure_future(inbox.changed())
    await asyncio.sleep(0)
    clock.now += 1.0
    async with asyncio.timeout(5):
        await reading
    assert read(inbox) == [("n1", PRESENCE)]


def test_agents_that_load_and_come_back_stay_within_their_budget(inbox, clock):
    """A heartbeat a second; all topics and forty steps of a load at once, ten times a minute."""
    for second in range(600):
        clock.now += 1.0
        say(inbox, "n1", HEALTH, health())
        if second % 60 < 10:
            for topic in ALL_TOPICS[:7]:
                inbox.put(topic.of("n1"), b"{}" * 1000, retained=False)
        if second % 60 == 30:
            for _ in range(40):
                inbox.put(ALL_TOPICS[5].of("n1"), b"{}" * 50, retained=False)
        waiting = {one.path for one in inbox._senders["n1"].waiting.values()}
        list(inbox.read())
        assert HEALTH.of("n1") in waiting and not inbox._waiting, second
    assert inbox.take_overdrawn() == []


def test_a_thousand_agents_are_all_heard_whatever_happens_at_once(inbox, clock):
    """They come together, load together, and the coordinator's own connection breaks twice; each
    message is some of the largest that agents send."""
    nodes, large = [f"n{number}" for number in range(1000)], b"{}" * 2500
    for second in range(20):
        clock.now += 1.0
        for node in nodes:
            if second in (0, 8, 9):  # All that is retained, once more.
                for topic in REPORT_TOPICS:
                    inbox.put(topic.of(node), large, retained=second > 0)
            if second == 4:
                for _ in range(20):
                    inbox.put(FACT.of(node), b"{}" * 50, retained=False)
            inbox.put(HEALTH.of(node), b"{}" * 500, retained=False)
        heard = len({one for one in inbox._waiting})
        list(inbox.read())
        assert heard == 1000 and not inbox._waiting
    assert inbox.take_overdrawn() == [] and inbox.dropped_count == 0
