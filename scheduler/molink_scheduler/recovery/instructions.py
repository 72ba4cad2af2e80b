"""Instructions of a ring's recovery, in the order in which they are to be carried out."""

from dataclasses import dataclass

from molink_scheduler.kv.changes import RetainBlocks
from molink_scheduler.recovery.members import Filler
from molink_scheduler.resume import Resume


@dataclass(frozen=True, slots=True)
class CountAsLost:
    """Take a silent stage for lost, and say so by `StagesLost`."""

    place: int


@dataclass(frozen=True, slots=True)
class FindFiller:
    """Say by `FillerFound` who can take a lost stage's place."""

    place: int
    taken: tuple[str, ...]
    """Nodes that fill other places."""
    held_back: tuple[str, ...]
    """Nodes that have lost stages too often to load one again now."""
    within_s: float
    """Time in which a free node must have the layers."""


@dataclass(frozen=True, slots=True)
class FindNeighbour:
    """Say by `NeighbourFound` who can take the layers of a hole beside its own."""

    layers: tuple[int, int]
    """[start, end) of the hole."""
    able: tuple[int, ...]
    """Places next to it that may be asked, the preferred one first."""
    within_s: float


@dataclass(frozen=True, slots=True)
class Stays:
    """The stage that was in a place goes on."""

    place: int
    """Before the epoch, as in the others."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """The node that has lost its stage loads the layers again."""

    place: int


@dataclass(frozen=True, slots=True)
class Fills:
    """Another node takes the place."""

    place: int
    filler: Filler


@dataclass(frozen=True, slots=True)
class Extends:
    """The stage that was in a place takes the layers of a hole beside its own."""

    place: int
    layers: tuple[int, int]
    """[start, end) of all that it holds then."""


NextMember = Stays | Reloads | Fills | Extends
"""Who is in a place of the ring's next epoch."""


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Let the ring stand still, on its way into its next epoch with these stages in its places."""

    attempt: int
    """Counts up; what comes of an earlier attempt is void."""
    seats: tuple[NextMember, ...]
    """Next member of each place."""


@dataclass(frozen=True, slots=True)
class HoldPlaces:
    """Have survivors keep what they hold, and wait."""

    places: tuple[int, ...]
    """Places of the new epoch, as in all that follows."""


@dataclass(frozen=True, slots=True)
class LoadPlaces:
    """Have stages load their layers; each says so by `PlaceLoaded`."""

    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TooSmall:
    """Hold it against a stage that it has less room than its ring counts with."""

    place: int
    lacks: str
    """"tokens" or "states"."""


@dataclass(frozen=True, slots=True)
class ListRequests:
    """Say by `RequestsListed` which requests could go on."""


@dataclass(frozen=True, slots=True)
class JoinEpoch:
    """Have all stages enter the epoch; each says so by `PlaceReady`."""

    resumes: tuple[Resume, ...]
    """By place: what each keeps."""


@dataclass(frozen=True, slots=True)
class ResumeRequests:
    """Let requests flow again, and say so by `WentOn`."""

    listed: frozenset[int]
    """Requests of which survivors keep KV."""
    missing: frozenset[int]
    """Requests among them with which some stage cannot go on."""
    behind_tokens: int
    """Rows that fresh stages lack of them, all told."""
    cached: RetainBlocks | None
    """Cached blocks that all survivors hold in their devices' memory, and all stages below it;
    None: they were asked for none."""


@dataclass(frozen=True, slots=True)
class Serve:
    """The ring serves again."""

    elapsed_s: float
    """Since the first loss."""
    loading_s: float
    """Part of it until all was loaded."""


@dataclass(frozen=True, slots=True)
class EndRing:
    """End the ring: it cannot go on, and its requests go to another one."""

    why: str
    """A sentence."""


Instruction = (
    CountAsLost
    | FindFiller
    | FindNeighbour
    | BeginEpoch
    | HoldPlaces
    | LoadPlaces
    | TooSmall
    | ListRequests
    | JoinEpoch
    | ResumeRequests
    | Serve
    | EndRing
)
