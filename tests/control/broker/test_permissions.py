"""Who may do what, against the definition spelled out."""

import pytest
from hypothesis import given

from molink.control.broker.permissions import is_filter, is_topic, may_read, may_write
from molink.control.messages.topics import ALL_TOPICS, ROOT
from tests.control.broker.test_routing import definition, filters, names, topics
from tests.mosquitto import documented_rules


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


def test_operators_are_told_the_same_rules_for_a_mosquitto():
    rules = documented_rules().replace("%u", "n1").split("\n")
    assert rules[:3] == ["user coordinator", f"topic readwrite {ROOT}/#", ""]
    write, read = (
        {one.removeprefix(start) for one in rules if one.startswith(start)}
        for start in ("pattern write ", "pattern read ")
    )
    own = {topic.of("n1") for topic in ALL_TOPICS}
    assert write == {topic for topic in own if may_write("n1", topic)}
    assert all(may_read("n1", topic_filter) for topic_filter in read)
    for topic in own:
        assert may_read("n1", topic) == any(definition(one, topic) for one in read)
