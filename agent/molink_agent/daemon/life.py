"""An agent's process: one for each data directory, with its log and its socket for the owner."""

import asyncio
import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from molink.config.data_lock import only_one
from molink.control.identity import KeyPair
from molink.control.messages import Profile
from molink.errors import ControlError, JoinRefusedError, MolinkError, UserError
from molink_agent.daemon.agent import Agent, LeftError
from molink_agent.daemon.assemble import assemble
from molink_agent.daemon.local_socket import SOCKET_NAME, answering
from molink_agent.daemon.membership import Membership, forget_membership, rejoin
from molink_agent.daemon.narration import Narration, now_sentence
from molink_agent.limits.limits import plain_limits

__all__ = ["LOG_FILE", "Onlooker", "live"]

LOG_FILE = "agent.log"
LOG_BYTES_MAX, LOG_FILES_MAX = 2**20, 3
"""A year of an agent that has nothing to complain about."""

LOCK_FILE = "agent.lock"

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 60.0
"""Between two attempts to reach a coordinator that was there before."""

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
        while True:
            agent = assemble(data_dir, pair, membership)
            try:
                async with answering(data_dir / SOCKET_NAME, partial(_answer, agent)):
                    await _watched(agent, onlooker)
            except LeftError as left:
                forget_membership(data_dir)
                log.info("%s", left)
                onlooker.say(str(left))
                return
            except UserError as error:
                log.info("ended: %s", error)
                raise
            except ControlError as error:
                log.warning("%s Asking the coordinator.", error)
                membership = await _asked_again(membership, pair, data_dir)


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


async def _asked_again(membership: Membership, pair: KeyPair, data_dir: Path) -> Membership:
    """The broker said no: perhaps it has another password now. Raises JoinRefusedError when this
    node was removed."""
    pause_s = RETRY_FIRST_S
    while True:
        try:
            return await rejoin(membership, pair, data_dir)
        except JoinRefusedError:
            raise
        except MolinkError as error:
            log.info("%s", error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_LONGEST_S)


async def _answer(agent: Agent, asked: dict[str, Any]) -> dict[str, Any]:
    """Of `molink agent status` and its siblings."""
    owner = agent.owner
    match asked:
        case {"command": "status" | "look"}:
            pass
        case {"command": "pause"}:
            owner.pause()
        case {"command": "resume"}:
            owner.resume()
            owner.leaving = False
        case {"command": "leave"}:
            owner.leaving = True
        case {"command": "look"}:  # At limits that were just changed.
            pass
        case _:
            raise UserError("The agent is of another version: restart it.")
    if asked["command"] != "status":
        await agent.look_now()
    return status_of(agent)


def status_of(agent: Agent) -> dict[str, Any]:
    """What the owner sees."""
    assignment, health = agent.host.assignment, agent.host.health
    work = assignment.work if assignment is not None else None
    return {
        "id": agent.node_id,
        "name": agent.membership.name,
        "cluster": agent.membership.url,
        "connected": agent.connected,
        "state": str(agent.state),
        "reason": agent.owner.wish.reason or (assignment.reason if assignment else ""),
        "until": agent.owner.now.until.isoformat() if agent.owner.now.until else None,
        "layers": list(work.layers) if work is not None else None,
        "model": work.weights.model if work is not None else None,
        "device": work.device if work is not None else None,
        "loaded": _loaded(agent),
        "paths": agent.host.ways.paths,
        "kv_tokens_used": health.kv_tokens_used if health is not None else 0,
        "busy_share": health.busy_share if health is not None else 0.0,
        "upload_mbps": agent.pc.measured.upload_mbps,
        "lends": _lends(agent.profile),
        "limits": plain_limits(agent.owner.limits.limits),
        "limits_problem": agent.owner.limits.problem,
        "shortage": agent.owner.shortage,
    }


def _loaded(agent: Agent) -> dict[str, Any] | None:
    """How far the stage is; None before it was given one."""
    fact, assignment = agent.voice.fact, agent.host.assignment
    if fact is None or assignment is None or fact.revision != assignment.revision:
        return None
    return {"kind": fact.kind, "fraction": fact.fraction, "message": fact.message}


def _lends(profile: Profile | None) -> list[dict[str, Any]]:
    """Of each device what the coordinator was told."""
    return [
        {
            "device": device.kind if device.kind == "cpu" else f"{device.kind}:{device.index}",
            "lent_bytes": device.free_bytes,
            "total_bytes": device.memory_bytes,
        }
        for device in (profile.devices if profile is not None else ())
    ]


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
