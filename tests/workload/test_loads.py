import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink.workload.loads import read_load, requests_of


def test_streams_begin_one_after_the_other():
    load = read_load("f", {"kind": "streams", "count": 3, "output_tokens": 9})
    assert [one.start_s for one in load.requests] == pytest.approx([0, 0.1, 0.2])
    assert {(one.input_tokens, one.output_tokens) for one in load.requests} == {(16, 9)}


def test_prompts_come_every_so_often_from_a_moment_on():
    table = {"kind": "prompts", "start_s": 5, "count": 3, "period_s": 2, "input_tokens": 700}
    load = read_load("f", table)
    assert [one.start_s for one in load.requests] == [5, 7, 9]
    assert {(one.input_tokens, one.output_tokens) for one in load.requests} == {(700, 2)}


def test_random_loads_depend_on_their_seed_alone():
    table = {"kind": "trace", "rate": 3, "duration_s": 20, "output_scale": 0.5}
    assert read_load("f", table) == read_load("g", table)
    assert read_load("f", table) != read_load("f", {**table, "seed": 1})


@given(
    rate=st.floats(0.5, 50),
    duration_s=st.floats(4, 60),
    start_s=st.floats(0, 100),
    seed=st.integers(0, 1000),
)
def test_poisson_requests_come_in_their_time(rate, duration_s, start_s, seed):
    table = {"kind": "poisson", "input_tokens": 5, "output_tokens": 6, "start_s": start_s}
    try:
        load = read_load("f", table | {"rate": rate, "duration_s": duration_s, "seed": seed})
    except UserError as refusal:
        assert "makes 0 requests" in str(refusal)  # Rare, and a load of nothing is none.
        return
    times = [one.start_s for one in load.requests]
    assert times == sorted(times)
    assert start_s <= times[0] and times[-1] <= start_s + duration_s


def test_loads_are_woven_together_in_order_of_time_and_keep_their_names():
    loads = [
        read_load("f", {"kind": "streams", "count": 2, "output_tokens": 9, "start_s": 1}),
        read_load(
            "f",
            {"kind": "prompts", "name": "long", "count": 2, "period_s": 1.05, "input_tokens": 8},
        ),
    ]
    planned = requests_of(loads)
    assert [one.load for one in planned] == ["long", "streams", "long", "streams"]
    assert [one.start_s for one in planned] == pytest.approx([0, 1, 1.05, 1.1])


@pytest.mark.parametrize(
    "table, words",
    [
        ({}, "take one of streams, prompts"),
        ({"kind": "flood"}, "'flood'"),
        ({"kind": "streams", "count": 2}, "no output_tokens"),
        ({"kind": "streams", "count": 0, "output_tokens": 2}, "count = 0"),
        ({"kind": "streams", "count": 2, "output_tokens": 2, "rate": 1}, "rate, which means"),
        ({"kind": "prompts", "count": 2, "input_tokens": 2}, "no period_s"),
        ({"kind": "trace", "rate": 0, "duration_s": 9}, "rate = 0"),
        ({"kind": "trace", "rate": 900, "duration_s": 900}, "lower its rate"),
        ({"kind": "trace", "rate": 1e-6, "duration_s": 1}, "makes 0 requests"),
        ({"kind": "trace", "rate": 1, "duration_s": 9, "start_s": -1}, "start_s = -1"),
    ],
)
def test_impossible_loads_are_one_sentence(table, words):
    with pytest.raises(UserError, match=words) as refusal:
        read_load("file.toml", table)
    assert "file.toml" in str(refusal.value)
