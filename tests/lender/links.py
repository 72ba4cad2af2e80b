"""Pairs of links in one process."""

import secrets
import socket

from molink.lender.lan.sealed_link import SealedLink


def sealed_pair() -> tuple[SealedLink, SealedLink]:
    """Both ends of a sealed link."""
    (ours, theirs), keys = socket.socketpair(), [secrets.token_bytes(32) for _ in "12"]
    return SealedLink(ours, *keys), SealedLink(theirs, *reversed(keys))
