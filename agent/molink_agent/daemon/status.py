"""What the owner asks a running agent, and what it answers: of the PC, and of each device."""

from typing import Any

from molink.control.messages.payloads import Profile
from molink.errors import UserError
from molink_agent.daemon.agent import Agent
from molink_agent.daemon.device_node import Seat
from molink_agent.limits.limits import plain_limits

__all__ = ["answer_owner", "status_of"]


async def answer_owner(agent: Agent, asked: dict[str, Any]) -> dict[str, Any]:
    """Of `molink agent status` and its siblings; whatever is asked holds for all devices."""
    owner = agent.owner
    match asked:
        case {"command": "status"}:
            return status_of(agent)
        case {"command": "look"}:  # At limits that were just changed.
            pass
        case {"command": "pause"}:
            owner.pause()
        case {"command": "resume"}:
            owner.resume()
            owner.leaving = False
        case {"command": "leave"}:
            owner.leaving = True
        case _:
            raise UserError("The agent is of another version: restart it.")
    await agent.look_now()
    return status_of(agent)


def status_of(agent: Agent) -> dict[str, Any]:
    """What the owner sees. What stands beside `devices` of a device is of the first; `shortage`
    only where no device is of any use."""
    owner = agent.owner
    lending = [seat for seat in agent.seats if seat.device] or [agent.first]
    shortages = [seat.enough.sentence for seat in lending]
    return {
        **device_status(agent.first),
        "cluster": agent.first.admission.pc().url,
        "until": owner.now.until.isoformat() if owner.now.until else None,
        "upload_mbps": agent.pc.measured.upload_mbps,
        "limits": plain_limits(owner.limits.limits),
        "limits_problem": owner.limits.problem,
        "shortage": shortages[0] if all(shortages) else "",
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
        "refused": seat.refused,
        "reason": seat.refused or seat.wish.reason or told,
        "layers": list(work.layers) if work is not None else None,
        "model": work.weights.model if work is not None else None,
        "loaded": _loaded(seat),
        "lends": _lends(seat.profile),
        "shortage": seat.enough.sentence,
        "paths": seat.host.ways.paths,
        "kv_tokens_used": health.kv_tokens_used if health is not None else 0,
        "busy_share": health.busy_share if health is not None else 0.0,
    }


def _loaded(seat: Seat) -> dict[str, Any] | None:
    """How far the stage is; None before it was given one."""
    fact, assignment = seat.voice.fact, seat.host.assignment
    if fact is None or assignment is None or fact.revision != assignment.revision:
        return None
    return {"kind": fact.kind, "fraction": fact.fraction, "message": fact.message}


def _lends(profile: Profile | None) -> list[dict[str, Any]]:
    """Of the device what the coordinator was told."""
    return [
        {
            "device": device.kind if device.kind == "cpu" else f"{device.kind}:{device.index}",
            "lent_bytes": device.free_bytes,
            "total_bytes": device.memory_bytes,
        }
        for device in (profile.devices if profile is not None else ())
    ]
