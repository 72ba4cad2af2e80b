"""Who may do what, and which filters match, against the definition spelled out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.broker.permissions import is_filter, is_topic, may_read, may_write
from molink.control.broker.topic_tree import TopicTree, matches
from molink.control.messages.topics import ALL_TOPICS

names = st.sampled_from(["n1", "n10", "a"])
levels = st.sampled_from(["molink", "v1", "node", "n1", "n10", "a", "told", "said", ""])
topics = st.lists(levels, min_size=1, max_size=6).map("/".join)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=6),
    st.sampled_from([(), ("#",)]),
)


def definition(topic_filter, topic):
    """MQTT 3.1.1, section 4.7, level by level."""
    wanted, given_levels = topic_filter.split("/"), topic.split("/")
    if not wanted:
        return not given_levels

    def match(wanted, rest):
        if not wanted:
            return not rest
        if wanted[0] == "#":
            return True
        return bool(rest) and wanted[0] in ("+", rest[0]) and match(wanted[1:], rest[1:])

    return match(wanted, given_levels)


@given(filters, topics)
def test_one_filter(topic_filter, topic):
    assert matches(topic_filter, topic) == definition(topic_filter, topic)


@given(st.lists(st.tuples(names, filters, st.integers(0, 1)), max_size=12), st.data())
def test_a_tree_of_filters(subscriptions, data):
    tree, kept = TopicTree(), {}
    for name, topic_filter, qos in subscriptions:
        tree.add(name, topic_filter, qos)
        kept[name, topic_filter] = qos
    for name, topic_filter in (
        data.draw(st.lists(st.sampled_from(sorted(kept)), max_size=3)) if kept else []
    ):
        tree.remove(name, topic_filter)
        kept.pop((name, topic_filter), None)
    gone = data.draw(names)
    tree.remove_client(gone)
    kept = {key: qos for key, qos in kept.items() if key[0] != gone}
    topic = data.draw(topics)
    wanted = {}
    for (name, topic_filter), qos in kept.items():
        if definition(topic_filter, topic):
            wanted[name] = max(qos, wanted.get(name, 0))
    assert tree.subscribers(topic) == wanted
    for name, _ in list(kept):
        tree.remove_client(name)
    assert not tree._root.below


@given(names, filters, topics)
def test_a_filter_that_is_allowed_matches_nothing_forbidden(name, topic_filter, topic):
    if may_read(name, topic_filter) and definition(topic_filter, topic):
        assert may_read(name, topic)


def test_prefixes_are_no_levels():
    assert may_read("n10", "molink/v1/node/n10/told/assignment")
    assert not may_read("n1", "molink/v1/node/n10/told/assignment")
    assert not may_write("n1", "molink/v1/node/n10/said/presence")
    assert not may_write("n1", "molink/v1/node/n1/saidx")


@pytest.mark.parametrize("topic", ALL_TOPICS, ids=lambda topic: topic.path)
def test_every_topic_is_said_by_one_side_and_heard_by_the_other(topic):
    own, other = topic.of("n1"), topic.of("n2")
    assert may_write("coordinator", own)
    assert may_read("coordinator", own)
    assert may_write("n1", own) == ("/node/n1/said/" in own)
    assert may_read("n1", own) == ("/told/" in own or "coordinator" in own)
    if other != own:
        assert not may_write("n1", other)
        assert not may_read("n1", other)


@pytest.mark.parametrize("good", ["#", "+", "a/#", "a/+/b", "/", "a//b", "+/#"])
def test_filters(good):
    assert is_filter(good)


@pytest.mark.parametrize("bad", ["", "a#", "#/a", "a+/b", "$SYS/#", "a\0", "/".join("a" * 40)])
def test_no_filters(bad):
    assert not is_filter(bad)
    assert not is_topic(bad)


def test_topics_have_no_wildcards():
    assert is_topic("a/b")
    assert not is_topic("a/+")
    assert not is_topic("a/#")
