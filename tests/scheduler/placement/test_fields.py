"""A question and its answer go through JSON and come out the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.placement import Plan
from molink_scheduler.placement.fields import (
    PlacementQuestion,
    fields_of,
    found_from_fields,
    plan_from_fields,
    question_from_fields,
)
from tests.scheduler.placement.clusters import small_cluster


def through_json(value):
    return json.loads(json.dumps(fields_of(value)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["planned", "even"]))
def test_nothing_is_lost_on_the_way(seed, nodes, split):
    problem = small_cluster(seed, nodes, layers=5)
    question = PlacementQuestion(problem.model, problem.nodes, problem.network, problem.goal, split)
    again = question_from_fields(through_json(question))
    assert again == question
    found = question.answer()
    assert found_from_fields(through_json(found)) == found == again.answer()
    if isinstance(found, Plan):
        assert plan_from_fields(through_json(found)) == found


@pytest.mark.parametrize("fields", [{}, {"rings": []}, {"rings": [{}], "standbys": []}])
def test_something_else_is_no_plan(fields):
    with pytest.raises((TypeError, KeyError)):
        plan_from_fields(fields)
