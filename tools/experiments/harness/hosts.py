"""Where the stages or agents of an experiment run, when not all on this machine's loopback."""

import json
from dataclasses import asdict, dataclass

__all__ = ["LOCAL_ADDRESS", "RingHosts", "StageAddress"]

LOCAL_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class StageAddress:
    """Address of one home, and how to run a program there."""

    address: str = LOCAL_ADDRESS
    command: tuple[str, ...] = ()
    """Words before the program's own; empty: it runs here."""


@dataclass(frozen=True, slots=True)
class RingHosts:
    """Homes of the stages, in order, and the coordinator's address."""

    stages: tuple[StageAddress, ...]
    coordinator_address: str = LOCAL_ADDRESS

    @classmethod
    def from_text(cls, text: str) -> "RingHosts":
        """The hosts whose `text` this is."""
        fields = json.loads(text)
        stages = (StageAddress(one["address"], tuple(one["command"])) for one in fields["stages"])
        return cls(tuple(stages), fields["coordinator_address"])

    @property
    def text(self) -> str:
        """JSON for another process."""
        return json.dumps(asdict(self))
