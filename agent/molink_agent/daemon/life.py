"""An agent's process: one for each data directory, with its log and its socket for the owner."""

import fcntl
import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from molink.control.identity import KeyPair
from molink.errors import UserError
from molink_agent.daemon.agent import LeftError
from molink_agent.daemon.assemble import assemble
from molink_agent.daemon.local_socket import SOCKET_NAME, answering
from molink_agent.daemon.membership import Membership, forget_membership
from molink_agent.daemon.status import answer_owner

__all__ = ["LOG_FILE", "live"]

LOG_FILE = "agent.log"
LOG_BYTES_MAX, LOG_FILES_MAX = 2**20, 3
"""A year of an agent that has nothing to complain about."""

LOCK_FILE = "agent.lock"


async def live(data_dir: Path, pair: KeyPair, membership: Membership) -> None:
    """Until cancelled, left, removed or replaced. Raises UserError or ControlError with the
    reason."""
    with _alone(data_dir), _logged(data_dir):
        agent = assemble(data_dir, pair, membership)
        try:
            async with answering(data_dir / SOCKET_NAME, partial(answer_owner, agent)):
                await agent.run()
        except LeftError as left:
            forget_membership(data_dir)
            print(left, flush=True)


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """One agent for each data directory. Raises UserError when another runs."""
    with (data_dir / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"An agent runs with {data_dir} already: give each its own --data-dir."
            ) from None
        yield


@contextmanager
def _logged(data_dir: Path) -> Iterator[None]:
    handler = logging.handlers.RotatingFileHandler(
        data_dir / LOG_FILE, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_MAX - 1
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()
