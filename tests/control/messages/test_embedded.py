"""Values of other schemas within messages: checked one by one, and no reason to drop the rest."""

import json
from dataclasses import asdict

import pytest

from molink.control.messages.base import Unreadable
from molink.control.messages.payloads import Assignment, NodeHealth, StageFact
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.head.settings import RingTerms

SIDE = PackingHealth("raw", 0, 0, 0.0)
HEALTH = StageHealth(7, 1.0, 0.5, 3, None, None, 0, SIDE, SIDE, 0, None, None, 0.1, 0.2, ())
LOADED = StageLoaded(5000, None, "cpu", "float32", 64, 10)
TERMS = RingTerms(64, None, (1, 2), 128)


def beat(stage):
    return NodeHealth.model_validate_json(
        json.dumps({"incarnation": "i", "state": "serving", "uptime_s": 1, "stage": stage})
    )


def test_a_stage_that_reports_is_typed():
    assert beat(asdict(HEALTH)).stage == HEALTH
    assert beat(asdict(HEALTH) | {"said_by_a_newer_agent": 1}).stage == HEALTH
    assert beat(None).stage is None


@pytest.mark.parametrize("change", [{"steps": -1}, {"busy_s": float("nan")}, {"links": "none"}])
def test_a_report_that_cannot_be_read_leaves_a_sign_of_life(change):
    health = beat(asdict(HEALTH) | change)
    assert isinstance(health.stage, Unreadable) and next(iter(change)) in health.stage.why
    assert health.uptime_s == 1


def test_what_is_no_object_is_no_message():
    for stage in ("up", 7, []):
        with pytest.raises(ValueError, match="stage"):
            beat(stage)


@pytest.mark.parametrize("line", [None, LOADED])
def test_a_fact_without_a_loaded_stage_says_so_with_an_empty_object(line):
    fact = StageFact(revision=1, kind="loaded", line=line)
    assert json.loads(fact.model_dump_json())["line"] == ({} if line is None else asdict(LOADED))
    assert StageFact.model_validate_json(fact.model_dump_json()) == fact


def test_a_name_that_only_an_earlier_version_knew_is_passed_over():
    """The order on the links was among the terms; whoever tells it is understood all the same."""
    plain = json.loads(Assignment(revision=1, join=TERMS).model_dump_json())
    plain["join"]["policy"] = "molink"
    assert Assignment.model_validate(plain).join == TERMS


def test_terms_of_another_version_are_kept_as_they_came():
    assignment = Assignment(revision=1, join=TERMS)
    plain = json.loads(assignment.model_dump_json())
    assert Assignment.model_validate(plain).join == TERMS
    plain["join"]["span_tokens"] = "of next year"
    read = Assignment.model_validate(plain)
    assert isinstance(read.join, Unreadable) and "span_tokens" in read.join.why
    assert json.loads(read.model_dump_json()) == plain
