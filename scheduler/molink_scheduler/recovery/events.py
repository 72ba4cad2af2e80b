"""Events of a ring's recovery. Places are those of the ring when the event happens."""

from dataclasses import dataclass

from molink_scheduler.kv.changes import NOWHERE, AwayBlocks
from molink_scheduler.recovery.members import Filler, Room
from molink_scheduler.resume import Positions


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of the stage in one place."""

    place: int
    may_load_again: bool = True
    """Whether its node is still there, and can be asked to load the layers again."""


@dataclass(frozen=True, slots=True)
class StagesLost:
    """Stages were lost, or none, but the way into the next epoch has failed."""

    losses: tuple[Loss, ...] = ()
    with_coordinator: bool = False
    """Whether the coordinator was lost too and has started anew: no stage need be."""


@dataclass(frozen=True, slots=True)
class PartsLost:
    """A stage has lost a lender, and what lay there: all stages enter the next epoch, and none is
    fresh. As the stage does, it says with which requests it cannot go on."""


@dataclass(frozen=True, slots=True)
class StageSilent:
    """Neither its neighbours nor the coordinator hear a stage of the ring."""

    place: int
    silent_s: float
    has_standby: bool
    """Whether another node could take its place at once."""


@dataclass(frozen=True, slots=True)
class FillerFound:
    """Nodes that can take the lost stage's place that `FindFiller` asked for."""

    place: int
    standby: Filler | None = None
    """Node that has the layers already."""
    free: Filler | None = None
    """Node that can have them in time."""


@dataclass(frozen=True, slots=True)
class NeighbourFound:
    """Neighbour that can take the hole's layers that `FindNeighbour` asked for, if any."""

    place: int | None
    """Place that can take the layers; None: none can."""


@dataclass(frozen=True, slots=True)
class PlaceLoaded:
    """A stage of the ring on its way into an epoch has its layers."""

    attempt: int
    """Number of the way into the next epoch, of `BeginEpoch`."""
    place: int
    room: Room


@dataclass(frozen=True, slots=True)
class RequestsListed:
    """Requests that could go on in the epoch, as `ListRequests` asked."""

    attempt: int
    requests: Positions
    """Pairs (request, its first tokens of which all stages hold KV)."""


@dataclass(frozen=True, slots=True)
class PlaceReady:
    """A stage has entered the epoch."""

    attempt: int
    place: int
    missing: tuple[int, ...] = ()
    """Requests with which it cannot go on."""
    cached: Positions = ()
    """Runs of cached blocks that may stay."""
    away: AwayBlocks = NOWHERE
    """Blocks below its device's memory that may stay."""


@dataclass(frozen=True, slots=True)
class WentOn:
    """The ring serves: requests flow again, as `ResumeRequests` said."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else has happened, and it may be too late by now."""


Event = (
    StagesLost
    | PartsLost
    | StageSilent
    | FillerFound
    | NeighbourFound
    | PlaceLoaded
    | RequestsListed
    | PlaceReady
    | WentOn
    | TimePassed
)
