"""The places of a relayed node: nobody takes those of others, under however many names."""

import asyncio

import pytest

from molink.transport.relay.client import (
    CALLER_CONNECTIONS_MAX,
    CONNECTIONS_MAX,
    CallerPlaces,
)
from tests.transport.relay.nodes import ANNA, BERT, CARL


class Calls:
    """Calls to one node, each of which stays until it is ended."""

    def __init__(self) -> None:
        self.places = CallerPlaces()
        self.carrying: dict[str, list[asyncio.Task[None]]] = {}

    def call(self, caller: str) -> str | None:
        objection = self.places.objection(caller)
        if objection is None:
            task = asyncio.create_task(asyncio.sleep(3600))
            self.carrying.setdefault(caller, []).append(task)
            self.places.take(caller, task)
        return objection

    def held(self, caller: str) -> int:
        return sum(not task.cancelling() for task in self.carrying.get(caller, ()))


@pytest.fixture
async def calls():
    calls = Calls()
    yield calls
    tasks = [task for tasks in calls.carrying.values() for task in tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(calls.places) == 0 and not calls.places._carrying


async def test_one_caller_has_a_few_places(calls):
    objections = [calls.call(ANNA) for _ in range(CALLER_CONNECTIONS_MAX + 1)]
    assert objections[:-1] == [None] * CALLER_CONNECTIONS_MAX
    assert "connections to this node already" in objections[-1]
    assert calls.call(BERT) is None


async def test_callers_of_many_names_keep_nobody_out(calls):
    """Sixteen seats of one PC, eight calls each, once were twice as many as there are."""
    assert calls.call(BERT) is None
    seats = [f"seat{number:012d}" for number in range(16)]
    for _ in range(CALLER_CONNECTIONS_MAX):
        for seat in seats:
            calls.call(seat)
    assert len(calls.places) == CONNECTIONS_MAX
    assert calls.call(CARL) is None and calls.call(CARL) is None
    assert (calls.held(BERT), calls.held(CARL)) == (1, 2)
    assert len(calls.places) == CONNECTIONS_MAX
    most = max(calls.held(seat) for seat in seats)
    oldest = [calls.carrying[seat][0].cancelling() for seat in seats]
    assert most <= CONNECTIONS_MAX // 16 and not any(oldest), "the newest go, links stay"


async def test_where_all_have_one_place_the_next_caller_waits(calls):
    for number in range(CONNECTIONS_MAX):
        assert calls.call(f"node{number:012d}") is None
    assert "64 connections already" in calls.call(ANNA)
    calls.carrying["node000000000000"][0].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert calls.call(ANNA) is None
