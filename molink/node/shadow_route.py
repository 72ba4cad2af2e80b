"""Leads a stage's link to the shadow of the next stage, as the coordinator orders."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from molink.control.messages.payloads import ShadowOrder, StageLink
from molink.errors import MolinkError
from molink.stage_protocol.messages import SetShadow
from molink.tasks import cancel, spawn

log = logging.getLogger(__name__)

FindAddress = Callable[[StageLink], Awaitable[tuple[str, str | None]]]
"""Finds where a link leads: address, and public key where links are encrypted. Raises
MolinkError."""


@dataclass(slots=True)
class ShadowRoute:
    """Route of one node's stage to the shadow of the next: the latest order wins.

    Finding a path may take a minute, in which the stage serves as ever.
    """

    _revision: int = -1
    _task: "asyncio.Task[None] | None" = field(default=None)

    async def lead(
        self, order: ShadowOrder, find: FindAddress, send: Callable[[SetShadow], None]
    ) -> None:
        """Carry an order out in the background; one that is not newer is a broker's memory."""
        if order.revision > self._revision:
            self._revision = order.revision
            await cancel(self._task)
            self._task = spawn(self._lead(order, find, send))

    async def leave(self) -> None:
        """The stage is in no ring any more."""
        await cancel(self._task)
        self._task = None

    async def _lead(
        self, order: ShadowOrder, find: FindAddress, send: Callable[[SetShadow], None]
    ) -> None:
        try:
            far_end = (None, None) if order.link is None else await find(order.link)
        except MolinkError as error:  # The ring does not depend on it.
            log.warning("there is no way to the shadow of the next stage: %s", error)
        else:
            send(SetShadow(order.epoch, *far_end))
