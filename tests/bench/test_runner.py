from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.bench.runner import PlannedRequest, RequestPlan, closed_loop, warm_up
from molink.workload.trace import TraceRequest

SMALL = st.integers(1, 20)


@given(st.integers(), st.integers(1, 1000), SMALL, SMALL, SMALL, SMALL)
def test_closed_loop(seed, vocabulary_size, slots, requests, input_tokens, output_tokens):
    def make():
        return closed_loop(
            Random(seed),
            vocabulary_size,
            TraceRequest(0.0, input_tokens, output_tokens),
            slots=slots,
            requests=requests,
        )

    plan = make()
    assert plan == make(), "one seed, one plan"
    assert (plan.slots, len(plan.requests)) == (slots, requests)
    for planned in plan.requests:
        assert len(planned.prompt_token_ids) == input_tokens
        assert all(0 <= one < vocabulary_size for one in planned.prompt_token_ids)
        assert planned.output_tokens == output_tokens
        assert planned.start_s == 0


def test_warm_up_is_short_and_reaches_every_slot():
    plan = warm_up(Random(0), 50, TraceRequest(0.0, 1000, 500), slots=3, rounds=2)
    assert (len(plan.requests), plan.slots) == (6, 3)
    assert len(plan.requests[0].prompt_token_ids) == 32
    assert plan.requests[0].output_tokens == 4
    nothing = warm_up(Random(0), 50, TraceRequest(0.0, 1, 1), slots=3, rounds=0)
    assert nothing.requests == []


def test_a_plan_is_valid_once_built():
    late, early = PlannedRequest((1,), 1, 0, 2.0), PlannedRequest((1,), 1, 0, 1.0)
    with pytest.raises(ValueError, match="order"):
        RequestPlan([late, early], 1)
    with pytest.raises(ValueError, match="slot"):
        RequestPlan([early, late], 0)
