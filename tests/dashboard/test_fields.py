import json

from hypothesis import given
from hypothesis import strategies as st

from molink.dashboard.model import fields
from molink.dashboard.model.cluster import ClusterState
from molink.dashboard.model.requests import Request
from molink.printable import is_printable
from tests.dashboard.scenes import cluster, timeline
from tests.nasty_text import nasty_texts

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | nasty_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty_texts, inner, max_size=3),
    max_leaves=8,
)


def test_what_is_no_number_is_none():
    body = {"a": True, "b": "5", "c": float("nan"), "d": 10**400, "e": 5, "f": None}
    assert [fields.number(body, one) for one in "abcdefg"] == [None] * 4 + [5.0, None, None]


def test_texts_are_cleaned_and_bounded():
    assert fields.text({"a": "x\x1b[2J\ny"}, "a") == "x\ufffd[2J y"
    assert len(fields.text({"a": "x" * 10_000}, "a")) == fields.TEXT_MAX


@given(st.sampled_from(["nodes", "rings", "model", "trouble", "relay", "unready_reason"]), values)
def test_any_field_of_a_cluster_may_be_anything(name, value):
    state = ClusterState.of({**cluster(), name: value})
    assert is_printable(state.model + state.unready_reason + "".join(state.troubles))
    assert all(is_printable(node.name + node.reason) for node in state.nodes)


@given(st.sampled_from(sorted(cluster()["nodes"][0])), values)
def test_any_field_of_a_node_may_be_anything(name, value):
    body = cluster()
    body["nodes"][0][name] = value
    (first, *_) = ClusterState.of(body).nodes
    assert is_printable(first.name + first.reason + "".join(first.doubts) + first.device)


@given(st.sampled_from(sorted(timeline(1))), values)
def test_any_field_of_a_request_may_be_anything(name, value):
    request = Request.of({**timeline(1), name: value})
    assert is_printable(request.id + request.error + request.state)
    assert request.moves >= 0


def test_a_cluster_is_read_whole():
    state = ClusterState.of(json.loads(json.dumps(cluster())))
    (ring,) = state.rings
    assert [stage.node for stage in ring.stages] == ["anna", "ben", "carl"]
    assert ring.link_to(0).ends == ("carl", "anna")
    assert (state.running, state.waiting) == (2, 1)
    assert state.counts() == {"serving": 3, "standby": 1}
