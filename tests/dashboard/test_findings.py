import pytest

from molink.findings.finding import Severity
from molink.findings.stages import slow_stages
from tests.dashboard.scenes import (
    cluster,
    history_of,
    link,
    look,
    node,
    slowed,
    stage,
    steady,
)


def sentences(history):
    return [one.sentence for one in history.findings]


def test_nothing_stands_out_of_a_steady_ring():
    assert history_of(*steady()).findings == []


def test_a_pc_slowed_to_a_third_comes_first():
    first, *_ = history_of(*steady(), *slowed()).findings
    assert (first.severity, first.subject) == (Severity.BAD, "ben")
    assert "ben is 3.0 times as slow as it was" in first.sentence


def test_it_is_found_at_the_first_look_where_the_node_has_told_its_times():
    (slow,) = slow_stages(history_of(slowed()[0]))
    assert (slow.node, slow.times) == ("ben", pytest.approx(3.0))


def test_a_ring_that_slows_down_together_has_more_to_do_and_is_not_slow():
    stages = [stage(name, 8 * at, 0.036) for at, name in enumerate(("anna", "ben", "carl"))]
    assert slow_stages(history_of(*steady(), look(20, cluster(stages=stages)))) == []


def test_without_any_measure_the_slowest_sets_the_pace():
    nodes = [node(name, 8 * at, profile=None) for at, name in enumerate(("anna", "ben", "carl"))]
    stages = [stage("anna", 0), stage("ben", 8, 0.036), stage("carl", 16)]
    body = cluster(stages=stages, nodes=nodes)
    (found,) = history_of(*(look(at, body) for at in range(6))).findings
    assert found.severity is Severity.NOTE
    assert found.sentence == "ben sets the pace of ring 1: its steps take longest."


def test_a_stage_that_has_hardly_computed_is_not_judged():
    stages = [stage("anna", 0), stage("ben", 8, 0.9, steps=3), stage("carl", 16)]
    assert history_of(look(0, cluster(stages=stages))).findings == []


def test_a_loss_is_told_with_its_time_and_reason():
    gone = cluster(
        nodes=[node("anna", 0), node("ben", state="lost", reason="It was switched off.")]
    )
    history = history_of(look(0), look(2, gone), look(8, gone))
    assert "ben was lost 3 s ago: It was switched off." in sentences(history)


def test_what_holds_up_users_is_told():
    links = [link("anna", "ben", decode_queued_bytes=10**7, rate_mbps=40.0)]
    assert sentences(history_of(look(0, cluster(links=links)))) == [
        "The link anna to ben holds up decode: 2.0 s of it are queued."
    ]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"unready_reason": "No PC has joined yet."},
            "Requests are refused: No PC has joined yet.",
        ),
        ({"intake_paused": True, "unready_reason": "x"}, "The intake is paused"),
        ({"trouble": ["The disk is full."]}, "The disk is full."),
        ({"relay": {"trouble": "The relay is gone."}}, "The relay is gone."),
    ],
)
def test_what_is_wrong_with_the_service(more, says):
    assert says in sentences(history_of(look(0, cluster(**more))))[0]


def test_no_answer_is_the_worst():
    history = history_of(*steady(), look(21, trouble="cannot reach http://x"))
    assert sentences(history)[0] == "cannot reach http://x. Last seen 1 s ago."


def test_whoever_is_outdated_is_told_with_what_to_update():
    why = "It speaks protocol 7: update MoLink."
    nodes = [node("anna", 0), node("dora", state="outdated", reason=why)]
    told = sentences(history_of(look(0, cluster(nodes=nodes))))
    assert told == [f"dora is outdated: {why}"]


def test_doubts_of_those_who_serve_are_noted():
    doubt = "Its steps take 3.1 times as long as it has told, and are planned so."
    nodes = [node("anna", 0, doubts=[doubt, "more"]), node("dora", doubts=["not now"])]
    assert sentences(history_of(look(0, cluster(nodes=nodes)))) == [
        f"anna: {doubt} (1 more in its details)"
    ]
