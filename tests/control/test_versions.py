"""Which numbers of the protocol work together, and what a message without one counts as."""

from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.assignment import Assignment
from molink.control.messages.joining import JoinRequest
from molink.control.messages.payloads import CoordinatorPresence, Presence
from molink.control.versions import PROTOCOL_IF_UNSTATED, Protocols, own_protocols
from molink.wire import protocol

NUMBERS = st.integers(0, 2**31)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_number_outside_the_range_says_in_one_sentence_who_is_to_update(one, other, number):
    speaks = Protocols(min(one, other), max(one, other))
    said = speaks.trouble(number)
    assert (said == "") is (speaks.oldest <= number <= speaks.newest)
    if said:
        assert said.count("update MoLink on") == 1 and said.count(". ") == 0 and len(said) < 300
        assert ("that PC" in said) is (number < speaks.oldest)
        assert ("the coordinator's machine" in said) is (number > speaks.newest)
        assert "`git pull && sh deploy/install.sh`" in said


def test_a_build_works_with_itself_and_not_with_those_that_told_no_number():
    assert own_protocols().trouble(protocol.PROTOCOL_VERSION) == ""
    assert "update" in own_protocols().trouble(PROTOCOL_IF_UNSTATED)


def test_until_rings_write_their_oldest_member_s_number_a_build_speaks_one():
    assert protocol.PROTOCOL_MIN == protocol.PROTOCOL_VERSION


def test_a_build_with_another_number_speaks_that_one_alone(monkeypatch):
    monkeypatch.setattr(protocol, "PROTOCOL_VERSION", 5)
    assert own_protocols() == Protocols(5, 5)


def test_a_build_speaks_older_numbers_from_its_least_on(monkeypatch):
    monkeypatch.setattr(protocol, "PROTOCOL_MIN", protocol.PROTOCOL_VERSION - 2)
    speaks = own_protocols()
    told = [bool(speaks.trouble(protocol.PROTOCOL_VERSION - back)) for back in range(-1, 4)]
    assert told == [True, False, False, False, True]


def test_messages_of_builds_that_told_no_number_are_read_as_theirs():
    presence = {
        "name": "anna",
        "incarnation": "12345678",
        "started_unix_s": 1.0,
        "version": "0.1.0",
        "online": True,
    }
    assert Presence.model_validate(presence).protocol == PROTOCOL_IF_UNSTATED
    assert Assignment.model_validate({"revision": 1}).protocol == PROTOCOL_IF_UNSTATED
    coordinator = CoordinatorPresence.model_validate({"online": True, "session": "s"})
    assert (coordinator.protocol_min, coordinator.protocol) == (
        PROTOCOL_IF_UNSTATED,
        PROTOCOL_IF_UNSTATED,
    )
    joining = {"challenge": "0" * 32, "name": "anna", "version": "0.1.0", "time_unix_s": 1.0}
    assert JoinRequest.model_validate(joining).protocol == PROTOCOL_IF_UNSTATED
