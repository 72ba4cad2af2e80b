"""Reports of nodes: what each does and why, what it has measured, and what it has given."""

from collections.abc import Mapping, Sequence

from molink.control.messages.payloads import Profile, StageFact
from molink.coordinator.nodes.discrepancies import Sightings, discrepancies
from molink.coordinator.nodes.node import Contribution, Node
from molink.report.nodes import (
    ContributionReport,
    MemoryReport,
    NodeReport,
    ProfileReport,
    ShadowReport,
)
from molink.report.shared_fields import report_of

NO_CONTRIBUTION = Contribution()

UNHEARD = "Nothing comes from it any more; its PC is off or asleep, or its line is down."
DRAINED = "The operator has drained it: it serves again once it is resumed."


def nodes_report(
    nodes: Sequence[Node],
    standbys: Mapping[str, str],
    given: Mapping[str, Contribution],
    devices: Mapping[str, str],
) -> list[NodeReport]:
    """One report for each node, by name. `standbys` are the reasons why nodes hold nothing,
    `devices` those of the stages that serve."""
    ordered = sorted(nodes, key=lambda node: (node.name, node.node_id))
    seen = Sightings.of(nodes)
    return [
        _node(
            node,
            given.get(node.node_id, NO_CONTRIBUTION),
            reason=_reason(node, standbys.get(node.node_id, "")),
            device=devices.get(node.node_id) or _device(node.profile),
            doubts=tuple(discrepancies(node, seen)),
        )
        for node in ordered
    ]


def _node(
    node: Node, given: Contribution, reason: str, device: str | None, doubts: tuple[str, ...]
) -> NodeReport:
    assignment, behind, profile = node.assignment, node.behind, node.profile
    work = assignment.work if assignment is not None else None
    return NodeReport(
        id=node.node_id,
        name=node.name,
        pc=node.pc,
        state=str(node.state),
        drained=node.drained,
        quarantined=bool(node.quarantined),
        version=node.presence.version if node.presence is not None else None,
        protocol=node.presence.protocol if node.presence is not None else None,
        reason=reason,
        ring=assignment.ring if assignment is not None and work is not None else None,
        layers=work.layers if work is not None else None,
        covers=node.covers or None,
        shadow=None if behind is None else report_of(ShadowReport, behind),
        loaded=_loaded(node.current_fact),
        device=device,
        memory=_memory(profile),
        paths=_paths(node),
        profile=None if profile is None else report_of(ProfileReport, profile),
        contribution=contribution_report(given),
        doubts=doubts,
    )


def _loaded(fact: StageFact | None) -> float | None:
    """The share of its layers that a node has; None: it holds none, or serves."""
    if fact is None or fact.kind == "ready":
        return None
    return 1.0 if fact.kind == "loaded" else fact.fraction


def contribution_report(given: Contribution) -> ContributionReport:
    """Figures of what one node has given, or all devices of a PC together."""
    return ContributionReport(round(given.uptime_s), given.token_layers, given.bytes_sent)


def _reason(node: Node, standby: str) -> str:
    if node.suspended:
        return node.suspended
    if node.quarantined:
        return f"It is quarantined: {node.quarantined}"
    if not node.is_here and node.wants != "leave":
        return (node.presence.reason if node.presence is not None else "") or UNHEARD
    if node.outdated:
        return node.outdated
    if node.drained:
        return DRAINED
    if node.wish is not None and node.wants != "serve":
        return node.wish.reason
    fact = node.current_fact
    if fact is not None and fact.kind == "failed":
        return fact.message
    if node.covers:
        return f"It stands by with the layers of {node.covers}."
    return standby if not node.is_assigned else ""


def _device(profile: Profile | None) -> str | None:
    if profile is None or not profile.devices:
        return None
    first = profile.devices[0]
    return first.kind if first.kind == "cpu" else f"{first.kind}:{first.index}"


def _memory(profile: Profile | None) -> MemoryReport | None:
    if profile is None or not profile.devices:
        return None
    first = profile.devices[0]
    return MemoryReport(first.free_bytes, first.memory_bytes)


def _paths(node: Node) -> dict[str, str]:
    """Kinds of its links' paths now; before it serves, as it has measured its neighbours."""
    if node.health is not None and node.health.paths:
        return dict(node.health.paths)
    return {to: path.path for to, path in node.paths.items()}
