"""Status of a running agent for its owner: of the PC, and of each device."""

from molink.control.messages.payloads import Profile
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.stage_protocol.health import StageHealth
from molink_agent.daemon.agent import Agent
from molink_agent.daemon.cell_member import CellMember
from molink_agent.daemon.device_node import DeviceNode
from molink_agent.limits.limits import plain_limits
from molink_agent.status_text import (
    AgentStatus,
    DeviceStatus,
    HostCachePart,
    KvLender,
    LentDevice,
    LoadedPart,
)


async def answer_owner(agent: Agent, question: JsonObject) -> AgentStatus:
    """Answer `molink agent status` and its siblings, which hold for all devices."""
    owner = agent.owner
    match question:
        case {"command": "status"}:
            return status_of(agent)
        case {"command": "look"}:  # Limits were just changed.
            pass
        case {"command": "pause"}:
            owner.pause()
        case {"command": "resume"}:
            owner.resume()
        case {"command": "leave"}:
            owner.leaving = True
        case _:
            raise UserError("The agent is of another version: restart it.")
    await agent.refresh()
    return status_of(agent)


def status_of(agent: Agent) -> AgentStatus:
    """The status for the owner."""
    owner = agent.owner
    lending = [node for node in agent.nodes if node.device] or [agent.first]
    shortages = [node.reports.capacity.sentence for node in lending]
    return {
        **_device_status(agent.first),
        "cluster": agent.first.admission.membership.url,
        "until": owner.now.until.isoformat() if owner.now.until else None,
        "upload_mbps": agent.pc.measured.upload_mbps,
        "limits": plain_limits(owner.limits.limits),
        "limits_problem": owner.limits.problem,
        "shortage": shortages[0] if all(shortages) else "",
        "devices": [_device_status(node) for node in agent.nodes],
        "kv_lenders": _kv_lenders(agent.first.cell),
    }


def _device_status(node: DeviceNode) -> DeviceStatus:
    """Status of one device, and of the node as which it serves."""
    assignment, health = node.stage.assignment, node.stage.health
    work = assignment.work if assignment is not None else None
    reason = assignment.reason if assignment is not None else ""
    return {
        "id": node.session.node_id,
        "name": node.session.name,
        "device": node.device or None,
        "connected": node.session.connected,
        "state": str(node.state),
        "refused": node.refused,
        "reason": node.refused or node.reports.wish.reason or reason,
        "layers": list(work.layers) if work is not None else None,
        "model": work.weights.model if work is not None else None,
        "loaded": _loaded(node),
        "lends": _lends(node.reports.profile),
        "shortage": node.reports.capacity.sentence,
        "paths": node.stage.routes.paths,
        "host_cache": _host_cache(health),
        "kv_tokens_used": health.kv_tokens_used if health is not None else 0,
        "busy_share": health.busy_share if health is not None else 0.0,
        "swap_fallback": node.stage.swap_fallback,
    }


def _kv_lenders(cell: CellMember | None) -> list[KvLender]:
    """Devices that lend memory for KV, or still hold some."""
    if cell is None:
        return []
    limits = cell.ram.owner.limits.limits
    lenders = {
        "cpu": (cell.ram, limits.lends_ram),
        cell.card.device or "a card": (cell.card, limits.lend_gpu_bytes > 0),
    }
    return [
        {
            "device": device,
            "lendable_bytes": one.room.size_bytes,
            "held_bytes": one.held_bytes,
            "why_less": one.room.why_less,
        }
        for device, (one, is_set) in lenders.items()
        if is_set or one.lends
    ]


def _host_cache(health: StageHealth | None) -> HostCachePart | None:
    """Host memory of the stage for cached KV; None: it takes none."""
    cache = None if health is None else health.host_cache
    if cache is None:
        return None
    return {
        "taken_bytes": cache.taken_bytes,
        "room_bytes": cache.room_bytes,
        "held_bytes": cache.held_bytes,
        "why_less": cache.why_less,
    }


def _loaded(node: DeviceNode) -> LoadedPart | None:
    """How far the stage is; None before it was given one."""
    fact, assignment = node.session.fact, node.stage.assignment
    if fact is None or assignment is None or fact.revision != assignment.revision:
        return None
    loaded: LoadedPart = {"kind": fact.kind, "fraction": fact.fraction, "message": fact.message}
    if fact.kind == "failed" and fact.about:
        loaded["link_lost"] = True
    download = node.reports.stage.download
    if fact.kind == "downloading" and download is not None:
        loaded["total_bytes"], loaded["bytes_per_s"] = download.total_bytes, download.bytes_per_s
        loaded["fraction"] = download.fraction
    return loaded


def _lends(profile: Profile | None) -> list[LentDevice]:
    """Devices as the coordinator was told of them."""
    return [
        {
            "device": device.kind if device.kind == "cpu" else f"{device.kind}:{device.index}",
            "lent_bytes": device.free_bytes,
            "total_bytes": device.memory_bytes,
        }
        for device in (profile.devices if profile is not None else ())
    ]
