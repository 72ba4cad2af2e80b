"""A coordinator that asks for measuring without end is given a twelfth of the line."""

from hypothesis import given
from hypothesis import strategies as st

from molink_agent.daemon.measuring_budget import BucketState, MeasuringBudget


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@given(st.lists(st.tuples(st.floats(0, 600), st.integers(1, 66)), max_size=200))
def test_no_order_of_orders_gets_more_than_the_bucket_and_its_filling(asked):
    clock = Clock()
    budget, spent = MeasuringBudget(BucketState(300, 300), clock), 0
    for pause_s, amount in asked:
        clock.now += pause_s
        clock.now += budget.wait_s(amount)
        budget.spend(amount)
        spent += amount
        assert spent <= 300 + clock.now / 12 + 1e-6


def test_an_order_beyond_the_bucket_waits_until_it_is_full():
    clock = Clock()
    budget = MeasuringBudget(BucketState(10, 10), clock)
    assert budget.wait_s(100) == 0
    budget.spend(100)
    assert budget.wait_s(1) == 91 * 360
    clock.now += 91 * 360
    assert budget.wait_s(1) == 0
