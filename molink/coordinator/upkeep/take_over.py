"""Take-over of rings that ran under an earlier coordinator, whose stages stand and wait.

What a coordinator knows of a ring that serves is kept on disk, and its nodes keep their stages for
a minute without one. Once they are all heard again, the ring goes on in its next epoch as after a
loss, with nothing lost: processes, weights and KV stay where they are. A ring of which some node
does not come back is dropped, and its requests are computed again from their tokens.

To ask the nodes which rings they form was rejected: they know their own layers and neighbours, and
neither forecast nor codec; what they hold is checked against what was kept all the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from molink.control.messages.assignment import Assignment
from molink.control.messages.payloads import StageLink
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.cluster_plan import PlannedRing, PlannedStage
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.ring import Ring
from molink.serving.answers.live_state import LiveState
from molink.serving.service import GenerationRequest
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.codec_choice import CodecDecision
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.placement.evaluate import Forecast

TAKE_OVER_WITHIN_S = 30.0
"""From our start until all nodes of a ring are heard: they wait up to ten seconds between attempts
to reach a broker, and their stages a minute for a coordinator that is gone."""


@dataclass(frozen=True, slots=True)
class KeptStage:
    """Stage of a ring, as a coordinator has left it."""

    node_id: str
    incarnation: str
    """Incarnation of the stage's agent."""
    assigned: Assignment
    """The last that its node was sent."""
    loaded: StageLoaded

    def __post_init__(self) -> None:
        if self.assigned.work is None:
            raise ValueError("a stage that serves holds layers")

    @property
    def planned(self) -> PlannedStage:
        """The stage in the plan of its ring."""
        assert self.assigned.work is not None, "it was checked"
        return PlannedStage(self.node_id, self.assigned.work)

    def is_unchanged(self, node: Node) -> bool:
        """Whether the node is as it was left, by its own report."""
        presence, fact = node.presence, node.fact
        is_same = presence is not None and presence.incarnation == self.incarnation
        return is_same and fact is not None and fact.revision == self.assigned.revision

    def is_heard(self, node: Node) -> bool:
        """Whether it is known what the node holds."""
        is_new = node.presence is not None and node.presence.incarnation != self.incarnation
        is_here = node.is_here and node.profile is not None
        return is_here and (is_new or node.fact is not None)


@dataclass(frozen=True, slots=True)
class KeptRing:
    """Ring that serves, as a coordinator needs to know it to take it over."""

    number: int
    settings: str
    """Settings of the operator that all stages of the ring were loaded with."""
    terms: RingTerms
    requests_link: StageLink
    codec: CodecDecision
    stages: tuple[KeptStage, ...]
    forecast: Forecast | None = None
    prompt_token_s: float = 0.0

    @property
    def plan(self) -> PlannedRing:
        """What it was built by."""
        return PlannedRing(
            tuple(one.planned for one in self.stages), self.forecast, self.prompt_token_s
        )

    def restored(self, stages: Sequence[AgentStage]) -> Sequence[AgentStage]:
        """Stages of its plan as they were left; one whose node does not hold that counts as
        lost."""
        for stage, left in zip(stages, self.stages, strict=True):
            stage.loaded = left.loaded
            stage.node.assignment = left.assigned if left.is_unchanged(stage.node) else None
        return stages

    @property
    def node_ids(self) -> frozenset[str]:
        """Ids of the nodes that hold its stages."""
        return frozenset(one.node_id for one in self.stages)


_TEXT: TypeAdapter[KeptRing] = TypeAdapter(KeptRing)


@dataclass(slots=True)
class RingKeeper:
    """Keeper of what a later coordinator needs to take rings over."""

    live: LiveState | None = None
    """None: nothing is kept."""
    settings: str = ""
    """Rings that were loaded with others are not taken over."""
    requests: dict[int, list[GenerationRequest]] = field(default_factory=dict)
    """Requests that rings of an earlier coordinator compute, by the ring's number."""

    @classmethod
    def of(
        cls, live: LiveState, settings: str, unfinished: Iterable[GenerationRequest]
    ) -> "RingKeeper":
        """Keeper of rings, whose requests of an earlier coordinator go on in them."""
        keeper = cls(live, settings)
        for request in unfinished:
            keeper.add(request)
        return keeper

    def add(self, request: GenerationRequest) -> None:
        """Have a request go on in its ring, if that is taken over."""
        before = request.log.before if request.log is not None else None
        if before is not None and before.place is not None:
            self.requests.setdefault(before.place.ring, []).append(request)

    def ended(self, request: GenerationRequest) -> None:
        """Have its ring, if that is taken over later, no longer go on with a request."""
        for requests in self.requests.values():
            requests[:] = [one for one in requests if one is not request]

    def keep(self, number: int, plan: PlannedRing, ring: Ring, codec: CodecDecision) -> None:
        """Keep a ring as it is in its present epoch."""
        stages = [
            KeptStage(stage.node.node_id, stage.incarnation, stage.node.assignment, stage.loaded)
            for stage in ring.stages
            if stage.node.assignment is not None and stage.loaded is not None
        ]
        if self.live is None or len(stages) < len(ring.stages):
            return
        link, terms = ring.requests_link, ring.terms.ring
        kept = KeptRing(
            number,
            self.settings,
            terms,
            link,
            codec,
            tuple(stages),
            forecast=plan.forecast,
            prompt_token_s=plan.prompt_token_s,
        )
        self.live.keep_ring(number, _TEXT.dump_json(kept).decode())

    def drop(self, number: int) -> None:
        """Forget a ring that has ended."""
        if self.live is not None:
            self.live.drop_ring(number)

    def rings(self) -> list[KeptRing]:
        """Those of an earlier coordinator that may be taken over; others are forgotten."""
        found: list[KeptRing] = []
        for number, text in self.live.rings() if self.live is not None else ():
            try:
                ring = _TEXT.validate_json(text)
            except ValidationError:  # Of another MoLink.
                ring = None
            if ring is not None and ring.settings == self.settings:
                found.append(ring)
            else:
                self.drop(number)
        return found


@dataclass(slots=True)
class TakeOver:
    """Rings of an earlier coordinator whose nodes are waited for."""

    book: NodeBook
    waiting: list[KeptRing] = field(default_factory=list)
    _began_at: float | None = None

    @property
    def node_ids(self) -> frozenset[str]:
        """Nodes that no other ring takes meanwhile."""
        return frozenset().union(*(ring.node_ids for ring in self.waiting))

    def take_due(self, now: float) -> tuple[list[KeptRing], list[KeptRing]]:
        """Rings of which all nodes are heard, and those that have been waited for long enough;
        neither are waited for any more."""
        self._began_at = now if self._began_at is None else self._began_at
        ready = [ring for ring in self.waiting if self._is_heard(ring)]
        is_over = now - self._began_at >= TAKE_OVER_WITHIN_S
        late = [ring for ring in self.waiting if is_over and ring not in ready]
        self.waiting = [ring for ring in self.waiting if ring not in ready and ring not in late]
        return ready, late

    def _is_heard(self, ring: KeptRing) -> bool:
        nodes = self.book.nodes
        return all(one.node_id in nodes and one.is_heard(nodes[one.node_id]) for one in ring.stages)

    def sentence(self) -> str:
        """Why nothing is built meanwhile."""
        return f"Waits for the PCs of {_rings(self.waiting)} that ran before this start."


def _rings(rings: Sequence[KeptRing]) -> str:
    return "a ring" if len(rings) == 1 else f"{len(rings)} rings"
