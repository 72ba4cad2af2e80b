"""Flows of a prompt, an activation and an assignment: the files that they pass, from the imports.

The flow of a thing is every file that one of its ends imports, directly or not, and that defines
or imports by name one of the types in which the thing travels. Such a file must be looked at when
a type changes; one that only hands bytes or whole objects on is not counted. An import through a
package's face counts as one of the file that defines the type; an equal name from elsewhere does
not.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tools.structure.files import DEFINITIONS, file_of, imports, read_for, tree_of

Origin = tuple[str, str]
"""A module, and a name in it."""

Names = Mapping[str, Origin]
"""What each name of a module means where it comes from; its own where it is defined."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A thing that passes through the product."""

    ends: tuple[str, ...]
    """Modules that make the thing, carry it on or take it in, with all that they import."""
    types: tuple[str, ...]
    """Types in which it travels, from end to end; each where it is defined."""


FLOWS = {
    "prompt": Flow(
        ("molink.api.app", "molink.coordinator.cluster", "molink.stage.start"),
        (
            "molink.serving.service.GenerationRequest",
            "molink_scheduler.request.Request",
            "molink.wire.frames.Submit",
            "molink.wire.frames.Sampled",
            "molink.serving.token_events.TokenEvent",
        ),
    ),
    "activation": Flow(
        ("molink.stage.start",),
        (
            "molink_scheduler.batch.Batch",
            "molink.wire.frames.Activations",
            "molink_scheduler.link.transmission.Transfer",
            "molink.wire.chunks.ChunkHeader",
        ),
    ),
    "assignment": Flow(
        (
            "molink.coordinator.upkeep.manager",
            "molink_agent.daemon.device_node",
            "molink.stage.stage_process",
        ),
        (
            "molink.coordinator.planning.cluster_plan.PlannedStage",
            "molink.control.messages.assignment.Assignment",
            "molink.control.messages.assignment.Load",
            "molink.control.messages.assignment.Join",
            "molink.stage_protocol.messages.StageWork",
            "molink.stage_protocol.messages.LoadStage",
            "molink.stage_protocol.messages.JoinRing",
        ),
    ),
}
"""From REST through the coordinator to a stage, and back as text; from one stage's engine over a
link to the next; from a plan through the agent to a stage that has loaded and joined."""


def names_of(module: str, tree: ast.Module) -> dict[str, Origin]:
    """Names that a module imports from others or defines itself, and what each means there."""
    found = dict[str, Origin]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            origin = node.module
            found |= {one.asname or one.name: (origin, one.name) for one in node.names}
    own = {node.name: (module, node.name) for node in tree.body if isinstance(node, DEFINITIONS)}
    return found | own


def home_of(name: str, module: str, names: Mapping[str, Names]) -> Origin | None:
    """Module of the product that defines what a name means in a module, and its name there."""
    origin = names.get(module, {}).get(name)
    if origin is None or origin == (module, name):
        return origin
    home, first_name = origin
    return home_of(first_name, home, names)


def origin_of(dotted: str) -> Origin:
    """Module and name of a type that is given with dots."""
    module, _, name = dotted.rpartition(".")
    return module, name


def in_the_flow(types: tuple[str, ...], names: Mapping[str, Names]) -> Iterator[str]:
    """Modules that define or import one of the types."""
    wanted = set(map(origin_of, types))
    for module, known in names.items():
        if any(home_of(name, module, names) in wanted for name in known):
            yield module


@cache
def all_names() -> dict[str, Names]:
    """Names of every module of the product."""
    return {one: names_of(one, tree_of(file_of(one))) for one in imports().modules}


def modules_of(flow: Flow) -> list[str]:
    """Modules of a flow, sorted. Raises LookupError where a type is not defined where it says."""
    names = all_names()
    for home, name in map(origin_of, flow.types):
        if home_of(name, home, names) != (home, name):
            raise LookupError(f"{home} does not define {name}: name its module in FLOWS")
    return sorted(read_for(*flow.ends).intersection(in_the_flow(flow.types, names)))


def flows() -> dict[str, int]:
    """Number of files of each flow."""
    return {name: len(modules_of(flow)) for name, flow in FLOWS.items()}
