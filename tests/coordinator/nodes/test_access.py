"""Who is shut out, for how long, and that the broker hears of it."""

import asyncio
from dataclasses import dataclass, field

import pytest

from molink.coordinator.nodes import access as access_module
from molink.coordinator.nodes.access import (
    FIRST_S,
    FORGIVEN_S,
    LONGEST_S,
    BrokerAccess,
    Suspensions,
)
from molink.errors import ControlError


@dataclass
class FlakyBroker:
    """Fails so often before it listens."""

    failures: int = 0
    told: list = field(default_factory=list)

    async def allow(self, node_id, password):
        self._hear(node_id, password)

    async def forbid(self, node_id):
        self._hear(node_id, None)

    def _hear(self, *what):
        if self.failures:
            self.failures -= 1
            raise ControlError("The broker does not take new users: see the log.")
        self.told.append(what)


@dataclass
class FakeClient:
    cleared: list = field(default_factory=list)

    async def clear(self, topic, node_id):
        self.cleared.append(topic.of(node_id))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(access_module, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(access_module, "RETRY_LONGEST_S", 0.0)


async def told_all(access):
    running = asyncio.create_task(access.run())
    async with asyncio.timeout(5):
        while access.pending_count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_broker_is_told_until_it_has_heard():
    broker = FlakyBroker(failures=3)
    access = BrokerAccess(broker, FakeClient())
    access.shut_out("a")
    await told_all(access)
    assert "molink/v1/node/a/said/profile" in access.client.cleared
    assert broker.told == [("a", None)] and access.guard.counts == {ControlError: 3}


async def test_the_last_word_counts():
    broker = FlakyBroker()
    access = BrokerAccess(broker, FakeClient())
    access.shut_out("a")
    access.let_in("a", "password")
    await told_all(access)
    assert broker.told == [("a", "password")]


def test_suspensions_grow_up_to_a_limit():
    suspensions, now, lengths = Suspensions(), 0.0, []
    for _ in range(9):
        lengths.append(suspensions.suspend("a", now))
        assert "a" in suspensions
        now += lengths[-1]
        assert suspensions.over(now) == ["a"]
        suspensions.end("a")
        assert "a" not in suspensions
    assert lengths[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S] and lengths[-1] == LONGEST_S


def test_after_an_hour_of_good_conduct_all_is_forgiven():
    suspensions = Suspensions()
    for now in (0.0, 100.0):
        suspensions.suspend("a", now)
    assert suspensions.suspend("a", 100.0 + 2 * FIRST_S + FORGIVEN_S + 1) == FIRST_S
    assert Suspensions().over(0.0) == []
