"""Keys of a link: both ends have them, no other link and no other direction does."""

import socket
from contextlib import closing

import pytest

from molink.errors import FrameError
from molink.lender.lan.handshake import GREETING, Opening, connected
from molink.lender.lan.sealed_link import SealedLink
from molink.stage_protocol.lan_lease import LanLease
from tests.lender.lan.fake_server import serving


def told(lease: LanLease) -> tuple[str, int, int, str]:
    return lease.host, lease.port, lease.lease, lease.key


def take(link: SealedLink) -> bytes:
    room = memoryview(bytearray(100))
    return bytes(room[: link.recv_into(room)])


def test_both_ends_understand_each_other() -> None:
    def echo(link: SealedLink, _: socket.socket) -> None:
        link.sendall(take(link) + b" came")

    with serving(echo) as lease, closing(connected(*told(lease))) as link:
        link.sendall(b"row")
        assert take(link) == b"row came"


def test_what_a_stage_sent_is_not_taken_back_for_an_answer() -> None:
    def reflect(_: SealedLink, raw: socket.socket) -> None:
        raw.sendall(raw.recv(100))

    with serving(reflect) as lease, closing(connected(*told(lease))) as link:
        link.sendall(b"row")
        with pytest.raises(FrameError, match="record 0 does not open"):
            take(link)


def test_a_link_that_was_recorded_is_not_played_again() -> None:
    heard: list[bytes] = []
    taken: list[bytes | FrameError] = []

    def listen(link: SealedLink, raw: socket.socket) -> None:
        heard.append(raw.recv(100, socket.MSG_PEEK))
        try:
            taken.append(take(link))
        except FrameError as error:
            taken.append(error)

    def say(opening: Opening, record: bytes) -> None:
        with socket.create_connection((lease.host, lease.port), 10) as raw:
            raw.sendall(opening.packed())
            raw.recv(GREETING.size, socket.MSG_WAITALL)
            raw.sendall(record)
            assert not raw.recv(1)

    opening = None
    with serving(listen) as lease:
        drawn = Opening.of

        def remembered(*given) -> Opening:
            nonlocal opening
            opening = drawn(*given)
            return opening

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Opening, "of", remembered)
            with closing(connected(*told(lease))) as link:
                link.sendall(b"a secret row")
                link.settimeout(10)
                with pytest.raises(ConnectionError):
                    take(link)
        assert opening is not None
        say(opening, heard[0])
    assert taken[0] == b"a secret row"
    assert isinstance(taken[1], FrameError)
