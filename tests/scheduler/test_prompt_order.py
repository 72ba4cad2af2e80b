import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.prompt_order import OWN_WORK_TIMES, PromptOrder

PROMPTS = st.lists(st.integers(1, 120_000), min_size=1, max_size=60)


@given(PROMPTS, st.integers(1, 20))
def test_what_passes_a_prompt_is_less_than_so_many_times_its_own(prompts, times):
    order = PromptOrder(times)
    places = [order.join(tokens) for tokens in prompts]
    for number, tokens in enumerate(prompts):
        later = zip(prompts[number + 1 :], places[number + 1 :], strict=True)
        passing = sum(other for other, place in later if place < places[number])
        assert passing <= (times - 1) * tokens


@given(PROMPTS)
def test_none_is_passed_by_a_longer_one(prompts):
    order = PromptOrder()
    places = [order.join(tokens) for tokens in prompts]
    for number, tokens in enumerate(prompts):
        later = zip(prompts[number + 1 :], places[number + 1 :], strict=True)
        assert all(place > places[number] for other, place in later if other >= tokens)


@given(PROMPTS)
def test_without_own_work_prompts_go_as_they_came(prompts):
    order = PromptOrder(0)
    places = [order.join(tokens) for tokens in prompts]
    assert places == sorted(places)


@pytest.mark.parametrize(("shorts", "passing"), [(1, 1), (50, 50), (200, 80)])
def test_a_flood_of_short_prompts_passes_a_long_one_only_so_far(shorts, passing):
    order = PromptOrder()
    long = order.join(1000)
    passed = sum(order.join(100) < long for _ in range(shorts))
    assert passed == passing
    assert 100 * passed < (OWN_WORK_TIMES - 1) * 1000
