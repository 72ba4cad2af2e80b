import asyncio
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from molink.printable import is_printable
from molink.report import plain
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain, to_plain
from molink.report.requests import RequestReport
from tests.dashboard.scenes import cluster, timeline
from tests.golden.values_cluster import cluster_of_agents
from tests.nasty_text import nasty_texts

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | nasty_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty_texts, inner, max_size=3),
    max_leaves=8,
)


def test_what_is_no_number_is_none():
    told = (True, "5", float("nan"), 10**400, 5, None)
    assert [plain.number(one) for one in told] == [None] * 4 + [5.0, None]


def test_texts_are_cleaned_and_bounded():
    assert plain.text("x\x1b[2J\ny") == "x\ufffd[2J y"
    assert len(plain.text("x" * 10_000)) == plain.TEXT_MAX


@given(st.sampled_from(["nodes", "rings", "model", "trouble", "relay", "unready_reason"]), values)
def test_any_field_of_a_cluster_may_be_anything(name, value):
    state = from_plain(ClusterReport, {**cluster(), name: value})
    assert is_printable("".join((state.model, state.unready_reason or "", *state.troubles)))
    assert all(is_printable(node.name + node.reason) for node in state.nodes)


@given(st.sampled_from(sorted(cluster()["nodes"][0])), values)
def test_any_field_of_a_node_may_be_anything(name, value):
    body = cluster()
    body["nodes"][0][name] = value
    (first, *_) = from_plain(ClusterReport, body).nodes
    assert is_printable(first.name + first.reason + "".join(first.doubts) + (first.device or ""))


@given(st.sampled_from(sorted(timeline(1))), values)
def test_any_field_of_a_request_may_be_anything(name, value):
    request = from_plain(RequestReport, {**timeline(1), name: value})
    assert is_printable(request.id + request.error + request.state)
    assert request.moves >= 0


def test_a_cluster_is_read_whole():
    state = from_plain(ClusterReport, json.loads(json.dumps(cluster())))
    (ring,) = state.rings
    assert [stage.node for stage in ring.stages] == ["anna", "ben", "carl"]
    assert ring.link_to(0).ends == ("carl", "anna")
    assert (state.running, state.waiting) == (2, 1)
    assert state.counts() == {"serving": 3, "standby": 1}


def test_what_is_written_is_read_as_it_was():
    report = asyncio.run(cluster_of_agents())
    assert report.rings[0].forecast and any(node.profile for node in report.nodes)
    assert from_plain(ClusterReport, json.loads(json.dumps(to_plain(report)))) == report


def test_only_what_is_none_by_default_is_left_out():
    (hop,) = from_plain(ClusterReport, {"rings": [{"links": [{}]}]}).rings[0].links
    told = to_plain(hop)
    assert "wire" not in told and "bytes_saved" not in told
    assert told["emulated"] is None and told["from"] == told["to"] == ""
    assert to_plain(replace(hop, bytes_saved=0))["bytes_saved"] == 0
