"""An agent's process: one for each data directory, with its log and its socket for the owner."""

import asyncio
import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from molink.config.data_lock import only_one
from molink.control.identity import KeyPair
from molink.errors import UserError
from molink_agent.daemon.agent import Agent, LeftError
from molink_agent.daemon.assemble import assemble
from molink_agent.daemon.local_socket import SOCKET_NAME, answering
from molink_agent.daemon.membership import Membership, forget_membership
from molink_agent.daemon.narration import Narration, now_sentence
from molink_agent.daemon.status import answer_owner, status_of

__all__ = ["LOG_FILE", "Onlooker", "live"]

LOG_FILE = "agent.log"
LOG_BYTES_MAX, LOG_FILES_MAX = 2**20, 3
"""A year of an agent that has nothing to complain about."""

LOCK_FILE = "agent.lock"

LOOK_S = 1.0
"""Between two looks at what has changed, for whoever looks on and for the log."""

log = logging.getLogger(__name__)


class Onlooker(Protocol):
    """Somebody in front of the agent's terminal, or its journal."""

    def say(self, sentence: str) -> None:
        """Something happened."""

    def now(self, sentence: str) -> None:
        """How it is."""


async def live(data_dir: Path, pair: KeyPair, membership: Membership, onlooker: Onlooker) -> None:
    """Until cancelled, left, removed or replaced. Raises UserError or ControlError with the
    reason."""
    with only_one("An agent", data_dir / LOCK_FILE), _logged(data_dir, onlooker):
        agent = assemble(data_dir, pair, membership)
        try:
            async with answering(data_dir / SOCKET_NAME, partial(answer_owner, agent)):
                await _watched(agent, onlooker)
        except LeftError as left:
            forget_membership(data_dir)
            log.info("%s", left)
            onlooker.say(str(left))
        except UserError as error:
            log.info("ended: %s", error)
            raise


async def _watched(agent: Agent, onlooker: Onlooker) -> None:
    """The agent's life, told."""
    telling = asyncio.ensure_future(_tell(agent, onlooker))
    try:
        await agent.run()
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(agent: Agent, onlooker: Onlooker) -> None:
    narration = Narration()
    while True:
        status = status_of(agent)
        for sentence in narration.update(status):
            log.info("%s", sentence)
            onlooker.say(sentence)
        onlooker.now(now_sentence(status))
        await asyncio.sleep(LOOK_S)


class _ToOnlooker(logging.Handler):
    """The agent's own warnings are for whoever looks on, too; a lost broker is told anyhow."""

    def __init__(self, onlooker: Onlooker) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(logging.Filter("molink_agent"))
        self._onlooker = onlooker

    def emit(self, record: logging.LogRecord) -> None:
        self._onlooker.say(record.getMessage())


@contextmanager
def _logged(data_dir: Path, onlooker: Onlooker) -> Iterator[None]:
    file = logging.handlers.RotatingFileHandler(
        data_dir / LOG_FILE, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_MAX - 1
    )
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers = (file, _ToOnlooker(onlooker))
    root = logging.getLogger()
    before = root.level
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(before)
