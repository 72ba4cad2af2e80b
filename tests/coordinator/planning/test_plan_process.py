"""A question and its answer go through JSON and come out the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.coordinator.planning.plan_process import QUESTION, answer_fields, answer_from_fields
from molink.errors import FrameError
from molink_scheduler.placement.question import PlacementQuestion
from tests.scheduler.placement.clusters import small_cluster


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["planned", "even"]))
def test_nothing_is_lost_on_the_way(seed, nodes, split):
    problem = small_cluster(seed, nodes, layers=5)
    question = PlacementQuestion.of(
        problem.model, problem.nodes, problem.network, problem.goal, split
    )
    again = QUESTION.read(json.loads(json.dumps(QUESTION.write(question))))
    assert again == question
    found = question.answer()
    told = json.loads(json.dumps(answer_fields(found)))
    assert answer_from_fields(told) == found == again.answer()


@pytest.mark.parametrize("fields", [{}, {"rings": []}, {"rings": [{}], "standbys": []}])
def test_something_else_is_no_plan(fields):
    with pytest.raises(FrameError):
        answer_from_fields(fields)
