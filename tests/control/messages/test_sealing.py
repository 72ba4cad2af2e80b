"""Only one key opens a sealed message, and only as what it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.addresses import ServerTrust
from molink.control.identity import KeyPair, key_to_z85
from molink.control.messages.joining import (
    JoinAnswer,
    JoinRequest,
    OpenedRequest,
    Voucher,
    check_answer,
    open_request,
    request_to_join,
    seal_vouched,
)
from molink.control.messages.sealing import SEALED_BYTES_MAX, open_answer, open_sealed, seal
from molink.errors import ControlError, UserError

AGENT, COORDINATOR, STRANGER = (KeyPair.of_secret(bytes([n]) * 32) for n in (1, 2, 3))

REQUEST = JoinRequest(
    challenge="0" * 32,
    invite_id="0123456789abcdef",
    invite_secret="f" * 32,
    name="PC in the attic",
    version="0.1",
    time_unix_s=1e9,
)
ANSWER = JoinAnswer(
    challenge="0" * 32,
    node_id=AGENT.node_id,
    broker_port=1883,
    broker_tls=ServerTrust(certificate="PEM"),
    agents_tls=ServerTrust(certificate="PEM"),
    username=AGENT.node_id,
    password="p" * 32,
    weights_token="w" * 32,
    time_unix_s=1e9,
    coordinator_public_key=COORDINATOR.public_z85,
)


def test_a_request_and_its_answer_go_there_and_back():
    sealed = seal(REQUEST, AGENT, COORDINATOR.public)
    assert open_sealed(sealed, COORDINATOR, JoinRequest) == (REQUEST, AGENT.public)
    answer = seal(ANSWER, COORDINATOR, AGENT.public)
    assert open_answer(answer, AGENT, JoinAnswer, COORDINATOR.public) == ANSWER
    check_answer(REQUEST, ANSWER, AGENT.node_id)


def test_a_further_device_is_vouched_for_by_the_key_of_its_pc_alone():
    device = AGENT.for_device(1)
    sealed = seal_vouched(REQUEST, device, AGENT, COORDINATOR.public)
    assert open_request(sealed, COORDINATOR) == OpenedRequest(REQUEST, device.public, AGENT.public)
    alone = open_request(seal(REQUEST, device, COORDINATOR.public), COORDINATOR)
    assert alone == OpenedRequest(REQUEST, device.public)
    assert REQUEST.invite_secret.encode() not in sealed


def test_a_voucher_needs_both_keys_and_is_not_one_within_another():
    """A stranger who has listened has sealed bytes, and neither the device's key nor the PC's."""
    device = AGENT.for_device(1)
    heard = seal_vouched(REQUEST, device, AGENT, COORDINATOR.public)
    inner = seal(REQUEST, device, COORDINATOR.public).decode()
    own = seal(Voucher(request=inner), STRANGER, COORDINATOR.public)
    assert open_request(own, COORDINATOR).pc_key == STRANGER.public
    with pytest.raises(ControlError, match="not the JoinRequest"):
        twice = seal(Voucher(request=heard.decode()), AGENT, COORDINATOR.public)
        open_request(twice, COORDINATOR)
    renamed = json.loads(own) | {"key": AGENT.public_z85}
    with pytest.raises(ControlError, match="cannot be opened"):
        open_request(json.dumps(renamed).encode(), COORDINATOR)


def test_nothing_of_the_message_can_be_read_on_the_way():
    sealed = seal(REQUEST, AGENT, COORDINATOR.public)
    assert REQUEST.invite_secret.encode() not in sealed and b"attic" not in sealed
    assert json.loads(sealed).keys() == {"key", "nonce", "sealed"}


@pytest.mark.parametrize("message", [REQUEST, ANSWER])
def test_secrets_are_not_shown(message):
    for secret in ("f" * 32, "p" * 32, "w" * 32):
        assert secret not in repr(message) and secret not in str(message)


def test_another_key_cannot_open_it():
    with pytest.raises(ControlError, match="cannot be opened"):
        open_sealed(seal(REQUEST, AGENT, COORDINATOR.public), STRANGER, JoinRequest)


def test_an_answer_of_somebody_else_is_refused():
    with pytest.raises(ControlError, match="else than the coordinator"):
        open_answer(seal(ANSWER, STRANGER, AGENT.public), AGENT, JoinAnswer, COORDINATOR.public)


def test_a_request_handed_back_is_no_answer():
    """The Box of two keys is the same both ways; the sender's name is not sealed in."""
    returned = json.loads(seal(REQUEST, AGENT, COORDINATOR.public))
    returned["key"] = COORDINATOR.public_z85
    with pytest.raises(ControlError, match="not the JoinAnswer"):
        open_answer(json.dumps(returned).encode(), AGENT, JoinAnswer, COORDINATOR.public)


def test_an_answer_to_another_request_is_refused():
    other = ANSWER.model_copy(update={"challenge": "1" * 32})
    with pytest.raises(ControlError, match="another request"):
        check_answer(REQUEST, other, AGENT.node_id)
    with pytest.raises(ControlError, match="another request"):
        check_answer(REQUEST, ANSWER, STRANGER.node_id)


@given(st.data())
def test_every_change_of_a_sealed_message_is_refused(data):
    sealed = seal(REQUEST, AGENT, COORDINATOR.public)
    at = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.integers(32, 126).filter(lambda byte: byte != sealed[at]))
    changed = sealed[:at] + bytes([other]) + sealed[at + 1 :]
    try:
        message, sender = open_sealed(changed, COORDINATOR, JoinRequest)
    except ControlError:
        return
    assert (message, sender) == (REQUEST, AGENT.public)  # Bits of the last base64 digit.


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_anything_else_is_no_sealed_message(data):
    with pytest.raises(ControlError, match="no sealed message"):
        open_sealed(data, COORDINATOR, JoinRequest)


def test_a_message_over_the_limit_is_not_even_parsed():
    with pytest.raises(ControlError, match="over 65536 bytes"):
        open_sealed(b" " * (SEALED_BYTES_MAX + 1), COORDINATOR, JoinRequest)


@pytest.mark.parametrize("key", ["~" * 40, key_to_z85(bytes(32))])
def test_a_key_that_is_none_is_refused(key):
    """With the zero key anybody could work out the shared secret."""
    fields = json.loads(seal(REQUEST, AGENT, COORDINATOR.public)) | {"key": key}
    with pytest.raises(ControlError):
        open_sealed(json.dumps(fields).encode(), COORDINATOR, JoinRequest)


def test_nothing_is_sealed_for_a_key_that_is_none():
    with pytest.raises(ControlError, match="no key"):
        seal(REQUEST, AGENT, bytes(32))
    with pytest.raises(ControlError, match="no key"):
        seal(REQUEST, AGENT, b"short")


def test_every_request_has_a_challenge_of_its_own():
    challenges = {request_to_join(None, "pc", "0.1", 0.0).challenge for _ in range(9)}
    assert len(challenges) == 9


@pytest.mark.parametrize("name", ["", "x" * 61, "two\nlines", "\x9b31m"])
def test_a_name_that_no_node_can_have_is_one_sentence(name):
    with pytest.raises(UserError, match="cannot be called"):
        request_to_join(None, name, "0.1", 0.0)
