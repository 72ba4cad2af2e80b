"""The path of an outgoing link, as the coordinator describes the link."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from molink.control.messages.payloads import StageLink
from molink.transport.paths.choose import Path
from molink.transport.paths.keeper import LinkEnd, PathKeeper
from molink.transport.relay.caller import RelayCaller

__all__ = ["keeper_of"]


def keeper_of(
    link: StageLink, caller: RelayCaller | None, moved: Callable[[Path], Awaitable[None]]
) -> PathKeeper:
    """What finds the way of `link`; run it for as long as the link lives.

    `caller`: this node at the cluster's relay. The link names the relay that its receiver is
    registered with; without one, or without `caller`, only direct paths are tried.
    """
    end = LinkEnd(link.to, link.port_name, link.addresses)
    if caller is None or not link.relay:
        return PathKeeper(end, None, moved)
    return PathKeeper(end, replace(caller, address=link.relay), moved)
