"""Drafts change no token: seeded drafters, through all that a ring does to its requests."""

import os
from random import Random

import pytest

from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.changing_ring import ChangingRing
from tests.scheduler.seeded_drafter import SeededDrafter, SeededTail
from tests.sweeps import swept

RINGS = int(os.environ.get("MOLINK_RINGS", "150"))
"""Rings of each sweep."""

LONGEST = 6
"""Blocks of the longest request; a stage never offers fewer in the end."""


def a_ring(seed: int) -> ChangingRing:
    """A ring whose KV is short, with everything that takes some from a request."""
    random = Random(seed)
    caches, states = random.random() < 0.6, random.random() < 0.3
    at_head, at_tail = random.choice([(True, False), (False, True), (True, True)])
    ring = ChangingRing(
        seed,
        stage_count=random.randint(1, 4),
        kv_tokens=BLOCK_TOKENS * random.choice([8, 12, 24, 200]),
        micro_batch_count=random.randint(1, 4),
        span_tokens=random.choice([16, 64]),
        prefill_tokens_in_flight_max=128,
        prefix_cache=caches,
        forecasts=random.random() < 0.5,
        tiers=CacheTiers(8, 16) if caches and not states and random.random() < 0.5 else None,
        lost=random.choice([0.0, 0.2]),
        state_slots=random.choice([2, 6]) if states else None,
        state_snapshots=3 if states else 0,
        drafter=SeededDrafter.of(seed) if at_head else None,
        tail_drafter=SeededTail.of(seed) if at_tail else None,
        draft_width_fixed=random.random() < 0.8,
    )
    for number in range(1, random.randint(4, 24)):
        length, base = random.randint(1, 48), random.choice([0, 5000])
        prompt = token_bytes([base + at for at in range(length)])
        sampling = SamplingParams(random.randint(1, BLOCK_TOKENS * LONGEST - length))
        priority = random.choice([0, 0, 1])
        ring.submit_at(random.uniform(0, 6), Request(number, prompt, sampling, (), priority))
        if random.random() < 0.1:
            ring.cancel_at(random.uniform(0, 8), number)
    if random.random() < 0.2:
        ring.clear_at(random.uniform(0, 8))
    for _ in range(random.randint(0, 6)):
        place, least = random.randrange(ring.stage_count), random.choice([1, LONGEST])
        ring.offer_at(random.uniform(0, 8), place, random.randint(least, 60))
    for place in range(ring.stage_count):
        ring.offer_at(30.0, place, random.randint(LONGEST, 60))
    return ring


@pytest.mark.parametrize("seed", swept(range(RINGS), of=120))
def test_no_token_changes_and_books_agree(seed):
    ring = a_ring(seed)
    ring.run()
    ring.assert_nothing_left()
    for number, request in ring.requests.items():
        answer = ring.answers[number]
        assert answer == ring.expected_answer(number)[: len(answer)]
        if number in ring.ended:
            assert len(answer) == request.sampling.max_tokens
