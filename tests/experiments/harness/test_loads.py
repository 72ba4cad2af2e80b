"""Streams and prompts against a running server."""

import asyncio
import time
from random import Random

import pytest

from molink.bench.runner import RequestRecord
from molink.bench.served_ring import ServedRing
from molink.client.api_client import ApiClient, ListedModel
from molink.errors import UserError
from tools.experiments.harness.loads import (
    Streams,
    decoding,
    first_token_s,
    prompts_always,
    prompts_every,
)


@pytest.fixture
async def ring(url):
    async with ApiClient(url) as client:
        yield ServedRing(client, await ListedModel.ask(client), None, Random(0))


async def test_streams_go_on_until_the_block_is_left(ring, service):
    start_s = time.perf_counter()
    async with decoding(ring, 3, 20) as seen:
        await asyncio.sleep(0.2)
    assert all(len(stream) > 1 for stream in seen.answers), "each answer is followed by another"
    assert seen.flowing and service.running_most == 3
    assert seen.gaps(start_s, float("inf"))
    await asyncio.sleep(0.2)
    assert service.running == 0, "leaving the block cancels what is under way"


async def test_a_broken_stream_voids_the_run(ring, service):
    service.failing = frozenset({1})
    with pytest.raises(UserError, match="the run is void: Stage 2 was lost"):
        async with decoding(ring, 2, 20):
            await asyncio.sleep(0.2)


def test_gaps_do_not_cross_answers_and_silence_counts():
    seen = Streams(1)
    seen.answers[0] = [
        RequestRecord(0.0, token_times_s=[1.0, 1.1, 1.4]),
        RequestRecord(1.5, token_times_s=[3.0, 3.25]),
    ]
    assert seen.gaps(1.2, 9.0) == [(1.4, pytest.approx(0.3)), (3.25, 0.25)]
    assert seen.longest_gap_s(1.0, 3.3) == pytest.approx(0.3)
    assert seen.longest_gap_s(1.0, 9.0) == pytest.approx(5.75), "the silence that goes on"


async def test_prompts_come_every_so_often(ring, service):
    records = await prompts_every(ring, 0.02, 0.1, 9, 2)
    starts = [record.start_s for record in records]
    assert len(records) == 5 and all(first_token_s(record) > 0 for record in records)
    assert starts[-1] - starts[0] >= 0.075
    assert {len(request.prompt_token_ids) for request in service.requests} == {9}


async def test_some_prompts_are_always_under_way(ring, service):
    records = await prompts_always(ring, 2, 0.2, 9)
    assert len(records) > 2 and service.running_most == 2
    service.failing = frozenset({len(service.requests)})
    service.unready_reason = "Stage 2 is loading."
    with pytest.raises(UserError, match="void: Stage 2 is loading"):
        await prompts_always(ring, 2, 5.0, 9)
