"""Echoes over a lender's link, and what they say of it."""

import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import LenderLostError
from molink.lender.lan.echoes import IN_S, OUT_S, CellLinkJudge, measure_echoes
from molink.lender.lan.sealed_link import SealedLink
from molink.lender.protocol import Kind, Receiver, send
from tests.lender.lan.fake_server import serving
from tests.lender.lan.owner import Owner

NEAR, BETWEEN, FAR = IN_S / 2, (IN_S + OUT_S) / 2, 2 * OUT_S


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lends to a LAN")
def test_echoes_come_by_a_lease_that_holds_nothing(owner: Owner) -> None:
    lease = owner.lease(0)
    told = lease.host, lease.port, lease.lease, lease.key
    assert len(measure_echoes(*told, count=5)) == 5
    assert all(seconds > 0 for seconds in measure_echoes(*told))
    with pytest.raises(LenderLostError, match="key is another"):
        measure_echoes(*told[:3], "cd" * 32)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame, content: (frame, bytes(len(content))),
        lambda frame, content: (frame._replace(number=frame.number - 1), content),
        lambda frame, content: (frame._replace(kind=Kind.ROWS), content),
    ],
    ids=["other bytes", "another echo's", "another kind"],
)
def test_what_is_no_echo_is_an_error(change) -> None:
    def answer(link: SealedLink, _: socket.socket) -> None:
        receiver = Receiver(link)
        for number in range(3):
            frame, content = receiver.receive()
            if number == 2:
                frame, content = change(frame, bytes(content))
            send(link, frame, [content])

    with serving(answer) as lease, pytest.raises(LenderLostError, match="something else"):
        measure_echoes(lease.host, lease.port, lease.lease, lease.key)


@pytest.mark.parametrize(
    "far, is_in",
    [(0, True), (1, True), (2, False), (20, False)],
)
def test_one_of_twenty_may_be_late(far: int, is_in: bool) -> None:
    assert CellLinkJudge().judge([NEAR] * (20 - far) + [FAR] * far) is is_in


def test_bounds_are_exact() -> None:
    assert not CellLinkJudge().judge([IN_S] * 20)
    assert CellLinkJudge(is_in=True).judge([OUT_S * 0.999] * 20)
    assert not CellLinkJudge(is_in=True).judge([OUT_S] * 20)


@given(st.lists(st.sampled_from([NEAR, BETWEEN, FAR]), max_size=30))
def test_between_the_bounds_nothing_changes(rounds: list[float]) -> None:
    judge, wanted = CellLinkJudge(), False
    for seconds in rounds:
        wanted = {NEAR: True, BETWEEN: wanted, FAR: False}[seconds]
        assert judge.judge([seconds] * 20) is wanted


def test_who_answers_nothing_is_out() -> None:
    assert not CellLinkJudge(is_in=True).judge([])
