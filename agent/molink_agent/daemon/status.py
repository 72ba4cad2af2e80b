"""What the owner asks a running agent, and what it answers: of the PC, and of each device."""

from dataclasses import asdict
from typing import Any

from molink.errors import UserError
from molink_agent.daemon.agent import Agent
from molink_agent.daemon.seat import Seat
from molink_agent.limits.limits_file import LimitsFile

__all__ = ["answer_owner", "status_of"]


async def answer_owner(agent: Agent, asked: dict[str, Any]) -> dict[str, Any]:
    """Of `molink agent status` and its siblings; whatever is asked holds for all devices."""
    owner = agent.owner
    match asked:
        case {"command": "status"}:
            return status_of(agent)
        case {"command": "pause"}:
            owner.pause()
        case {"command": "resume"}:
            owner.resume()
            owner.leaving = False
        case {"command": "leave"}:
            owner.leaving = True
        case {"command": "set", "key": str(key), "value": str(value)}:
            LimitsFile(owner.data_dir).set(key, value)  # As anybody would: it is noticed.
        case _:
            raise UserError("The agent is of another version: restart it.")
    await agent.look_now()
    return status_of(agent)


def status_of(agent: Agent) -> dict[str, Any]:
    """What the owner sees. What stands beside `devices` of a device is of the first."""
    owner, membership = agent.owner, agent.first.admission.pc()
    return {
        **device_status(agent.first),
        "cluster": membership.url,
        "until": owner.now.until.isoformat() if owner.now.until else None,
        "upload_mbps": agent.pc.measured.upload_mbps,
        "limits": {key: _plain(value) for key, value in asdict(owner.limits.limits).items()},
        "limits_problem": owner.limits.problem,
        "devices": [device_status(seat) for seat in agent.seats],
    }


def device_status(seat: Seat) -> dict[str, Any]:
    """What one device does, and as which node."""
    assignment, health = seat.host.assignment, seat.host.health
    work = assignment.work if assignment is not None else None
    told = assignment.reason if assignment is not None else ""
    return {
        "id": seat.node_id,
        "name": seat.voice.name,
        "device": seat.device or None,
        "connected": seat.voice.connected,
        "state": str(seat.state),
        "reason": seat.refused or seat.wish.reason or told,
        "layers": list(work.layers) if work is not None else None,
        "model": work.weights.model if work is not None else None,
        "paths": seat.host.ways.paths,
        "kv_tokens_used": health.kv_tokens_used if health is not None else 0,
        "busy_share": health.busy_share if health is not None else 0.0,
    }


def _plain(value: Any) -> Any:
    return [str(one) for one in value] if isinstance(value, tuple) else value
