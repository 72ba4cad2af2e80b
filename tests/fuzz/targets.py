"""Every decoder that a peer, an agent, a broker, a router or a user can reach."""

from tests.fuzz import (
    targets_agent,
    targets_api,
    targets_chat,
    targets_control,
    targets_endpoints,
    targets_wire,
)
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *targets_wire.TARGETS,
    *targets_control.TARGETS,
    *targets_agent.TARGETS,
    *targets_api.TARGETS,
    *targets_chat.TARGETS,
    *targets_endpoints.TARGETS,
)

BY_NAME = {target.name: target for target in TARGETS}

assert len(BY_NAME) == len(TARGETS)
