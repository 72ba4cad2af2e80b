"""A node of another protocol is a member, is told so, and is asked for nothing."""

from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import (
    CoordinatorPresence,
    NodeState,
    NodeWish,
    ProbeOrder,
    StageFact,
)
from molink.control.messages.topics import PRESENCE
from molink.control.messages.topics import PROFILE as PROFILE_TOPIC
from molink.control.versions import PROTOCOL_IF_UNSTATED, own_protocols
from molink.coordinator.nodes.newcomers import UP_TO_DATE
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.reports.node_reports import nodes_report
from molink.wire.protocol import PROTOCOL_VERSION
from tests.control.assignments import loading
from tests.coordinator.examples import HERE, PROFILE, WORK
from tests.coordinator.nodes.test_hub import world

OLD = HERE.model_copy(update={"protocol": PROTOCOL_IF_UNSTATED})

WORDS = st.one_of(
    st.tuples(
        st.just("presence"),
        st.integers(PROTOCOL_IF_UNSTATED - 1, PROTOCOL_VERSION + 1),
        st.booleans(),
    ).map(lambda one: HERE.model_copy(update={"protocol": one[1], "online": one[2]})),
    st.sampled_from([NodeWish(wish=wish) for wish in ("serve", "pause", "leave")]),
    st.just(PROFILE),
    st.sampled_from([StageFact(revision=1, kind=kind) for kind in ("loaded", "ready", "failed")]),
)


@given(st.lists(WORDS), st.booleans())
def test_whatever_it_says_it_is_never_planned_nor_measured(words, is_assigned):
    book = NodeBook()
    node = book.node("n")
    node.assignment = loading(WORK) if is_assigned else None
    for word in words:
        book.take("n", word, 0.0)
        speaks = node.presence is not None and node.presence.protocol == PROTOCOL_VERSION
        assert bool(node.outdated) is (node.presence is not None and not speaks)
        assert speaks or not node.may_serve
        assert speaks or not node.may_measure
        assert not node.outdated or node.wants in ("pause", "leave")
        assert (node.state is NodeState.OUTDATED) is bool(node.is_here and node.outdated)


def test_the_operator_reads_why_and_which_version_it_is():
    book = NodeBook()
    for message in (OLD, PROFILE, NodeWish(wish="pause", reason="a game")):
        book.take("n", message, 0.0)
    (entry,) = nodes_report([book.node("n")], {"n": "It rests for 60 s: lost."}, {}, {})
    assert entry.state == "outdated" and "update MoLink on that PC" in entry.reason
    assert (entry.version, entry.protocol) == ("1", PROTOCOL_IF_UNSTATED)


async def test_it_is_told_to_update_and_told_otherwise_once_it_has():
    async with world() as w:
        await w.say("a", PRESENCE, OLD)
        await w.say("a", PROFILE_TOPIC, PROFILE)
        *_, told = await w.told("a", 3)
        assert told.work is None and "update MoLink on that PC" in told.reason
        assert told.protocol == PROTOCOL_VERSION
        await w.say("a", PRESENCE, HERE.model_copy(update={"incarnation": "b" * 12}))
        *_, told = await w.told("a", 6)
        assert told.reason == UP_TO_DATE
        assert not any(isinstance(message, ProbeOrder) for _, message in w.client.told)


async def test_the_coordinator_tells_all_what_it_speaks():
    async with world() as w:
        (presence,) = await w.told("", 1)
        assert isinstance(presence, CoordinatorPresence)
        speaks = own_protocols()
        assert (presence.protocol_min, presence.protocol) == (speaks.oldest, speaks.newest)
