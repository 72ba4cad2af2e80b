"""Rings in virtual time, and requests for them."""

import pytest

from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.fake_ring import FakeRing
from tests.scheduler.fake_stage import NothingGrows


@pytest.fixture(scope="session")
def make_ring():
    return FakeRing


@pytest.fixture
def nothing_grows():
    return NothingGrows()


@pytest.fixture(scope="session")
def make_request():
    def make(
        request_id: int,
        prompt: int | tuple[int, ...],
        max_tokens: int,
        priority: int = 0,
        cache_salt: str = "",
        wishes: tuple[tuple[int, int], ...] = (),
        **sampling,
    ) -> Request:
        tokens = tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        return Request(request_id, token_bytes(tokens), params, (), priority, cache_salt, wishes)

    return make
