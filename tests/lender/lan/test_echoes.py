"""Echoes over a lender's link."""

import socket
import sys

import pytest

from molink.errors import LenderLostError
from molink.lender.lan.echoes import measure_echoes
from molink.lender.lan.sealed_link import SealedLink
from molink.lender.protocol import Kind, Receiver, send
from tests.lender.lan.fake_server import serving
from tests.lender.lan.owner import Owner


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
