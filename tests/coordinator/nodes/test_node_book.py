"""What the coordinator knows of its nodes, from what they say."""

from molink.control.heartbeats import SILENT_AFTER_S
from molink.control.messages.payloads import NodeHealth, NodeState, NodeWish, StageFact
from molink.coordinator.nodes.node_book import NodeBook
from tests.control.assignments import loading, stopping
from tests.coordinator.examples import HERE, PROFILE, WORK

GONE = HERE.model_copy(update={"online": False})


def book_with(*messages, node_id="n", now=0.0):
    book = NodeBook()
    for message in messages:
        assert book.take(node_id, message, now)
    return book, book.node(node_id)


def test_a_node_goes_from_joining_to_standby_when_it_is_measured():
    book, node = book_with(HERE)
    assert node.state is NodeState.JOINING
    book.take("n", PROFILE.model_copy(update={"steps": None}), 0.0)
    assert node.state is NodeState.JOINING
    assert not node.may_serve
    book.take("n", PROFILE, 0.0)
    assert node.state is NodeState.STANDBY
    assert node.may_serve


def test_an_assigned_node_loads_until_it_says_of_this_very_revision_that_it_is_ready():
    book, node = book_with(HERE, PROFILE)
    node.assignment = loading(WORK, revision=7)
    book.take("n", StageFact(revision=6, kind="ready"), 0.0)
    assert node.state is NodeState.LOADING
    book.take("n", StageFact(revision=7, kind="ready"), 0.0)
    assert node.state is NodeState.SERVING


def test_the_owners_wish_decides():
    book, node = book_with(HERE, PROFILE, NodeWish(wish="pause"))
    assert node.state is NodeState.PAUSED
    node.assignment = loading(WORK)
    assert node.state is NodeState.DRAINING
    book.take("n", NodeWish(wish="serve"), 0.0)
    assert node.state is NodeState.LOADING


def test_silence_longer_than_the_heartbeats_allow_is_a_loss_and_a_word_ends_it():
    book, node = book_with(HERE, PROFILE)
    assert not book.notice_silence(SILENT_AFTER_S)
    assert book.notice_silence(SILENT_AFTER_S + 0.1) == [node]
    assert node.state is NodeState.LOST
    assert not book.notice_silence(SILENT_AFTER_S + 9)
    health = NodeHealth(incarnation=HERE.incarnation, state=NodeState.STANDBY, uptime_s=1)
    book.take("n", health, 20.0)
    assert node.state is NodeState.STANDBY


def test_whose_owner_has_taken_it_out_has_left_and_is_not_lost():
    book, node = book_with(HERE, PROFILE, NodeWish(wish="leave"), GONE)
    assert node.state is NodeState.LEFT
    book.take("n", NodeWish(wish="serve"), 0.0)
    assert node.state is NodeState.LOST


def test_a_node_says_who_keeps_it_out():
    book, node = book_with(HERE, PROFILE)
    assert node.kept_out_reason == ""
    book.take("n", NodeWish(wish="pause", reason="Its owner plays."), 0.0)
    assert node.kept_out_reason == "Its owner plays."
    book.set_drained(node, is_drained=True)
    assert node.kept_out_reason == "The operator has asked this PC to pause."


def test_nobody_is_lost_for_the_time_in_which_nobody_could_be_heard():
    book, node = book_with(HERE, PROFILE)
    book.excuse_silence(100.0)
    assert not book.notice_silence(100.0 + SILENT_AFTER_S)
    assert node.is_here


def test_the_will_of_a_replaced_agent_does_not_end_the_one_that_replaced_it():
    second = HERE.model_copy(update={"incarnation": "b" * 12, "started_unix_s": 2.0})
    book, node = book_with(HERE, StageFact(revision=1, kind="ready"), second, GONE)
    assert node.is_here
    assert node.fact is None, "a new incarnation holds nothing"
    book.take("n", second.model_copy(update={"online": False}), 0.0)
    assert node.state is NodeState.LOST


def test_what_is_no_word_of_a_node_is_not_taken():
    book = NodeBook()
    assert not book.take("n", stopping(), 0.0)
