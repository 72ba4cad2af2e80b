"""Who is sent a message, and what is retained, against the definition spelled out."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from molink.control.broker.packets import REFUSED, Message
from molink.control.broker.permissions import is_filter, may_read, may_write
from molink.control.broker.routing import RetainedStore, Router, matches

names = st.sampled_from(["n1", "n10", "a"])
levels = st.sampled_from(["molink", "v1", "node", "n1", "n10", "a", "told", "said", ""])
topics = st.lists(levels, min_size=1, max_size=6).map("/".join)
filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=6),
    st.sampled_from([(), ("#",)]),
)
said = st.sampled_from(["told/assignment", "said/presence", "said/health", "said/x"])
own_topics = st.builds("molink/v1/node/{}/{}".format, names, said)
real_topics = st.one_of(topics, own_topics, st.just("molink/v1/coordinator/said/x"))
clients = st.one_of(names, st.just("coordinator"))


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


@dataclass
class RecordingClient:
    """A double that keeps what it is sent."""

    sent: list = field(default_factory=list)
    ended: list = field(default_factory=list)

    def send(self, message):
        self.sent.append(message)

    def end(self, *, with_will=True):
        self.ended.append(with_will)


@given(filters, topics)
def test_one_filter(topic_filter, topic):
    assert matches(topic_filter, topic) == definition(topic_filter, topic)


@given(
    st.lists(st.tuples(clients, st.one_of(filters, real_topics), st.integers(0, 1)), max_size=12),
    st.data(),
)
def test_a_message_goes_once_to_each_subscriber_that_may_read_it(subscriptions, data):
    router, kept = Router(), {}
    connected = {name: RecordingClient() for name in ("n1", "n10", "a", "coordinator")}
    for name, client in connected.items():
        router.add_client(name, client)
    for name, topic_filter, qos in subscriptions:
        granted = router.subscribe(name, topic_filter, qos)
        allowed = is_filter(topic_filter) and may_read(name, topic_filter)
        assert granted == (qos if allowed else REFUSED)
        if granted != REFUSED:
            kept[name, topic_filter] = qos
    for name, topic_filter in (
        data.draw(st.lists(st.sampled_from(sorted(kept)), max_size=3)) if kept else []
    ):
        router.unsubscribe(name, topic_filter)
        kept.pop((name, topic_filter), None)
    gone, topic, writer = data.draw(names), data.draw(real_topics), data.draw(clients)
    router.remove_client(gone)
    router.publish(writer, Message(topic, b"x", 1, True))
    wanted = {}
    for (name, topic_filter), qos in kept.items():
        if name != gone and may_write(writer, topic) and definition(topic_filter, topic):
            wanted[name] = max(qos, wanted.get(name, 0))
    for name, client in connected.items():
        expected = [Message(topic, b"x", wanted[name], False)] if name in wanted else []
        assert client.sent == expected


def test_a_client_of_the_same_name_ends_the_earlier_one():
    router, first, second = Router(), RecordingClient(), RecordingClient()
    router.add_client("n1", first)
    router.add_client("n1", second)
    assert (first.ended, second.ended) == ([True], [])
    router.end_client("n1")
    router.end_client("n2")
    assert second.ended == [False]


def test_a_client_has_only_so_many_filters():
    router = Router()
    router.add_client("n1", RecordingClient())
    granted = [router.subscribe("n1", f"molink/v1/node/n1/told/{n}", 1) for n in range(33)]
    assert granted == [1] * 32 + [REFUSED]
    assert router.subscribe("n1", "molink/v1/node/n1/told/0", 0) == 0


@given(st.lists(st.tuples(topics, st.sampled_from([b"", b"1", b"2"])), max_size=20), filters)
def test_what_is_retained_is_the_last_of_each_topic(said, topic_filter):
    retained, last = RetainedStore(), {}
    for topic, data in said:
        retained.put(Message(topic, data, 1, True))
        last[topic] = data
    wanted = {topic: data for topic, data in last.items() if data and matches(topic_filter, topic)}
    found = list(retained.matching(topic_filter))
    assert {one.topic: one.payload for one in found} == wanted
    assert len(found) == len(wanted)


def test_what_a_node_may_have_retained_are_its_reports():
    router = Router()
    for name in ("n1", "coordinator"):
        router.add_client(name, RecordingClient())
    for kind in ("presence", "profile", "x", "presence/x", "presencex", ""):
        router.publish("n1", Message(f"molink/v1/node/n1/said/{kind}", b"x", 1, True))
    kept = [one.topic.rpartition("/")[2] for one in router.retained("#")]
    assert kept == ["presence", "profile"]
