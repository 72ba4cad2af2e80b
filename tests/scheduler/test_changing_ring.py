"""A ring's capacity changes at any moment: no token is wrong, no stage holds more than it has."""

import os
from random import Random

import pytest

from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.changing_ring import ChangingRing
from tests.sweeps import swept

RINGS = int(os.environ.get("MOLINK_RINGS", "1000"))
"""Rings of a sweep; ten thousand take twenty minutes of a processor."""

LONGEST = 6
"""Blocks of the longest request; a stage never offers fewer in the end."""


def a_ring(seed: int) -> ChangingRing:
    random = Random(seed)
    caches = random.random() < 0.7
    ring = ChangingRing(
        seed,
        stage_count=random.randint(1, 4),
        kv_tokens=BLOCK_TOKENS * random.choice([8, 12, 24]),
        micro_batch_count=random.randint(1, 4),
        prefix_cache=caches,
        forecasts=random.random() < 0.5,
        tiers=CacheTiers(8, 16) if caches and random.random() < 0.5 else None,
        lost=random.choice([0.0, 0.2]),
    )
    for number in range(1, random.randint(4, 24)):
        length, base = random.randint(1, 48), random.choice([0, 5000])
        prompt = token_bytes([base + at for at in range(length)])
        sampling = SamplingParams(random.randint(1, BLOCK_TOKENS * LONGEST - length))
        ring.submit_at(random.uniform(0, 6), Request(number, prompt, sampling))
        if random.random() < 0.1:
            ring.cancel_at(random.uniform(0, 8), number)
    for _ in range(random.randint(1, 8)):
        place, least = random.randrange(ring.stage_count), random.choice([1, LONGEST])
        ring.offer_at(random.uniform(0, 8), place, random.randint(least, 60))
    for place in range(ring.stage_count):
        ring.offer_at(30.0, place, random.randint(LONGEST, 60))
    return ring


@pytest.mark.parametrize("seed", swept(range(RINGS), of=150))
def test_no_token_changes_and_no_stage_holds_more_than_it_has(seed):
    ring = a_ring(seed)
    ring.run()
    ring.assert_nothing_left()
    for number, request in ring.requests.items():
        answer = ring.answers[number]
        assert answer == ring.expected_answer(number)[: len(answer)]
        if number in ring.ended:
            assert len(answer) == request.sampling.max_tokens
