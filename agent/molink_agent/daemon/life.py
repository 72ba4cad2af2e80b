"""An agent's process: one for each data directory, with its log and its socket for the owner."""

import asyncio
import fcntl
import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from molink.control.identity import KeyPair
from molink.errors import ControlError, JoinRefusedError, MolinkError, UserError
from molink_agent.daemon.agent import Agent, LeftError
from molink_agent.daemon.assemble import assemble
from molink_agent.daemon.local_socket import SOCKET_NAME, answering
from molink_agent.daemon.membership import MEMBERSHIP_FILE, Membership, rejoin

__all__ = ["LOG_FILE", "live"]

LOG_FILE = "agent.log"
LOG_BYTES_MAX, LOG_FILES_MAX = 2**20, 3
"""A year of an agent that has nothing to complain about."""

LOCK_FILE = "agent.lock"

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 60.0
"""Between two attempts to reach a coordinator that was there before."""

log = logging.getLogger(__name__)


async def live(data_dir: Path, pair: KeyPair, membership: Membership) -> None:
    """Until cancelled, left, removed or replaced. Raises UserError or ControlError with the
    reason."""
    with _alone(data_dir), _logged(data_dir):
        while True:
            agent = assemble(data_dir, pair, membership)
            try:
                async with answering(data_dir / SOCKET_NAME, partial(_answer, agent)):
                    await agent.run()
            except LeftError as left:
                (data_dir / MEMBERSHIP_FILE).unlink(missing_ok=True)
                print(left, flush=True)
                return
            except UserError:
                raise
            except ControlError as error:
                log.warning("%s Asking the coordinator.", error)
                membership = await _asked_again(membership, pair, data_dir)


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
        case {"command": "set", "key": str(key), "value": str(value)}:
            owner.limits.set(key, value)
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
        "connected": agent.client is not None and agent.client.connected,
        "state": str(agent.state),
        "reason": agent.owner.wish.reason or (assignment.reason if assignment else ""),
        "until": agent.owner.now.until.isoformat() if agent.owner.now.until else None,
        "layers": list(work.layers) if work is not None else None,
        "model": work.weights.model if work is not None else None,
        "device": work.device if work is not None else None,
        "paths": agent.host.ways.paths,
        "kv_tokens_used": health.kv_tokens_used if health is not None else 0,
        "busy_share": health.busy_share if health is not None else 0.0,
        "upload_mbps": agent.pc.measured.upload_mbps,
        "limits": {key: _plain(value) for key, value in asdict(agent.owner.limits.limits).items()},
        "limits_problem": agent.owner.limits.problem,
        "shortage": agent.owner.shortage,
    }


def _plain(value: Any) -> Any:
    return [str(one) for one in value] if isinstance(value, tuple) else value


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
