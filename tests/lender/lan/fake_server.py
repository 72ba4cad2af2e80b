"""A server of a LAN's lenders in the test's own process, which may do what no real one does."""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from molink.lender.lan.handshake import OPENING, Opening, let_in
from molink.lender.lan.sealed_link import SealedLink
from molink.stage_protocol.lan_lease import LanLease

INCARNATION = 77


@contextmanager
def serving(serve: Callable[[SealedLink, socket.socket], None]) -> Iterator[LanLease]:
    """A lease for which `serve` has the lender's end of each link, sealed and as it is."""
    key = secrets.token_bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    with link:
                        opening = Opening.read(link.recv(OPENING.size, socket.MSG_WAITALL))
                        serve(let_in(link, opening, key, INCARNATION), link)

        thread = threading.Thread(target=accept)
        thread.start()
        port = listener.getsockname()[1]
        yield LanLease("127.0.0.1", port, 1, key.hex(), INCARNATION, 2**20)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
