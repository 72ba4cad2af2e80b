"""Settings of the operator for the upkeep of rings."""

from dataclasses import dataclass, field

from molink.coordinator.upkeep.recovery_files import RecoveryFiles

NOBODY_JOINED = "No PC has joined yet: start an agent with the command that `molink up` printed."
NOBODY_HANDED = (
    "No PC is here yet: hand some over with `molink node move` at the coordinator that this one "
    "replaces."
)


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Settings of the operator for building, covering and replacing rings."""

    min_nodes: int = 1
    codec: str = "raw"
    """Codec of a ring's links, as `--wire` names it."""
    standbys: int = 0
    """Free nodes that are to hold the layers of others."""
    shadow: bool = True
    """Whether they are to hold KV of theirs as well."""
    first_must_stand: bool = False
    """Whether a first ring that fails is the operator's to mend, who sits in front of it."""
    recoveries: RecoveryFiles = field(default_factory=RecoveryFiles)
    """Logs of rings that lose stages."""
    nobody: str = NOBODY_JOINED
    """Sentence for users and operator while no PC has come."""
