"""Whatever a member puts into a field of its messages: it is refused or taken, and all go on."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.control.inbox import Inbox
from molink.control.messages.topics import HEALTH
from molink.coordinator.nodes.access import REPORT_TOPICS
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.reports.ledger import Accounting, Ledger
from molink.coordinator.reports.node_reports import nodes_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.report.plain import to_plain
from molink.serving.model_card import ModelCard
from tests.control.assignments import loading
from tests.coordinator.examples import WORK
from tests.coordinator.nodes.test_hub import World
from tests.golden.values_control import NODE
from tests.golden.values_told import PAYLOADS

numbers = st.one_of(
    st.integers(),
    st.sampled_from([-1, 2**53, 2**63, 10**400]),
    st.floats(),
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)
EXAMPLES = [
    (topic, json.loads(message.model_dump_json()))
    for topic, message in (build() for build in PAYLOADS.builders.values())
    if topic in REPORT_TOPICS
]
DEEP = b"[" * 30_000


def places(value, path=()):
    """Every place of a JSON value, itself among them."""
    yield path
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def said(draw):
    """A topic, and a payload of which one or two fields are anything."""
    topic, value = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 2))):
        value = replaced(value, draw(st.sampled_from(list(places(value)))), draw(plain))
    return topic, json.dumps(value).encode()


@pytest.fixture(scope="module")
def ledger():
    with tempfile.TemporaryDirectory() as folder:
        opened = Ledger.open(Path(folder))
        yield opened
        opened.close()


def is_json(value):
    """As browsers have it: no NaN, nothing infinite."""
    return json.dumps(value, allow_nan=False)


@settings(deadline=None)
@given(st.lists(said(), min_size=1, max_size=4))
def test_no_message_stops_the_hub_and_its_report_is_json(ledger, messages):
    world, inbox = World(), Inbox()
    world.client.inbox = inbox
    for topic, example in EXAMPLES:
        inbox.put(topic.of(NODE), json.dumps(example).encode(), retained=False)
    for topic, payload in messages:
        world.book.node(NODE).assignment = loading(WORK)
        inbox.put(topic.of(NODE), payload, retained=False)
        for received in inbox.read():
            world.hub._take(received)
        service = ClusterService(ModelCard("m", 0, 100, 64, (), None), service_report)
        accounting = Accounting(ledger, world.book, service)
        accounting.settle(accounting._at + 10.0)
        world.hub._watch_silence(1e9)
        assert is_json([*map(to_plain, nodes_report(list(world.book), {}, ledger.all(), {}))])
        assert not accounting.guard.counts
    assert not world.hub.guard.counts


@pytest.mark.parametrize("topic", REPORT_TOPICS, ids=lambda topic: topic.path)
@pytest.mark.parametrize("payload", [DEEP, b"{", b"\xff", b"null", b"NaN", b"[]", b"1" * 5000])
def test_what_is_no_message_is_counted(topic, payload):
    inbox = Inbox()
    inbox.put(topic.of(NODE), payload, retained=False)
    assert list(inbox.read()) == [] and inbox.invalid_count == 1


@pytest.mark.parametrize("text", ['"1"', "true", "NaN", "Infinity", "-1", "1e999"])
def test_a_number_is_a_finite_number(text):
    payload = f'{{"incarnation": "12345678", "state": "standby", "uptime_s": {text}}}'
    inbox = Inbox()
    inbox.put(HEALTH.of(NODE), payload.encode(), retained=False)
    assert list(inbox.read()) == []


def test_the_largest_that_an_honest_node_says_is_far_below_the_limit():
    largest = max(len(json.dumps(value)) for _, value in EXAMPLES)
    assert largest < 2**15
