"""How one seat becomes a member of the cluster, and one again when the broker has said no.

The first seat has joined with the invite before the agent runs. A further seat asks by itself, and
the PC's own token vouches for it: so a card that is put in later is lent without a new invite.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from molink.control.identity import KeyPair
from molink.errors import JoinRefusedError, MolinkError
from molink_agent.daemon.membership import Membership, join_seat, load_membership, rejoin

__all__ = ["Admission"]

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 60.0
"""Between two attempts to reach a coordinator that was there before."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Admission:
    """Of one seat."""

    pair: KeyPair
    """The seat's."""
    name: str
    directory: Path
    """Where its membership is kept."""
    pc: Callable[[], Membership]
    """The PC's own membership, as it is now."""
    kept: Membership | None = None
    """This seat's; None: not asked for yet."""

    async def enter(self) -> Membership:
        """The membership that was kept, or a new one, however long that takes.

        Raises JoinRefusedError, and UserError when what was kept is damaged.
        """
        pc = self.pc()
        if self.kept is None:
            kept = await asyncio.to_thread(load_membership, self.directory)
            self.kept = kept if kept is not None and kept.belongs_to(pc, self.name) else None
        if self.kept is None:
            self.kept = await _until_answered(
                lambda: join_seat(self.pc(), self.pair, self.name, self.directory)
            )
        return self.kept

    async def again(self) -> Membership:
        """The broker said no: perhaps it has another password now. Raises JoinRefusedError when
        this node was removed."""
        before = self.kept
        assert before is not None, "whoever is refused was a member"
        self.kept = await _until_answered(lambda: rejoin(before, self.pair, self.directory))
        return self.kept


async def _until_answered(ask: Callable[[], Awaitable[Membership]]) -> Membership:
    pause_s = RETRY_FIRST_S
    while True:
        try:
            return await ask()
        except JoinRefusedError:
            raise
        except MolinkError as error:
            log.info("%s", error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_LONGEST_S)
