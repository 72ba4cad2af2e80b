"""Layers of lost stages that a neighbour has taken beside its own.

A ring that nobody completes goes on with fewer stages. Each of them is described by the node that
hosts it and by the stages of the ring as it began whose layers it has now. What the new layers
lack of each request, and from what they are fed, `molink_scheduler.stage.extension` says; here it
takes time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from molink_scheduler.batch import Batch, BatchClass
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.resume import Resume
from molink_scheduler.stage.extension import Extension, HasRows
from molink_sim.scenario import RingSpec, StageSpec, StepCost


@dataclass(frozen=True, slots=True)
class RingNode:
    """Node in one place of a ring, which may have fewer places than when it began."""

    origin: int
    """The node's place when the ring began; faults name this one."""
    parts: range
    """Stages of the ring as it began whose layers it has."""


def nodes_of(spec: RingSpec) -> tuple[RingNode, ...]:
    """Nodes of a ring that begins."""
    return tuple(RingNode(place, range(place, place + 1)) for place in range(len(spec.stages)))


def with_nodes(whole: RingSpec, nodes: Sequence[RingNode]) -> RingSpec:
    """The ring of these nodes; the link that leaves each now leads to the next of them."""
    stages = tuple(stage_of(whole, node.origin, node.parts) for node in nodes)
    return replace(whole, stages=stages, links=tuple(whole.links[node.origin] for node in nodes))


def stage_of(whole: RingSpec, origin: int, parts: range) -> StageSpec:
    """Stage on one of a ring's nodes with the layers of these of its stages."""
    if len(parts) == 1:
        return whole.stages[parts[0]]
    stages = whole.stages[parts.start : parts.stop]
    slots = [one.state_slots for one in stages if one.state_slots is not None]
    return replace(
        whole.stages[origin],
        layers=sum(one.layers for one in stages),
        cost=SumCost(tuple(one.cost for one in stages)),
        kv_tokens=min(one.kv_tokens for one in stages),
        state_slots=min(slots, default=None),
    )


@dataclass(frozen=True, slots=True)
class SumCost:
    """Step cost of layers that are computed one after the other."""

    parts: tuple[StepCost, ...]

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`."""
        return sum(part.step_s(batch_class, rows, kv_tokens, sequences) for part in self.parts)


def batch_s(cost: StepCost, batch: Batch) -> float:
    """Seconds of a step that computes one batch."""
    kv_tokens = sum([span.end for span in batch.spans])
    return cost.step_s(batch.batch_class, batch.tokens, kv_tokens, len(batch.spans))


@dataclass(frozen=True, slots=True)
class TakenLayers:
    """Layers that a stage has taken beside those that it had, at one loss."""

    cost: StepCost
    extension: Extension

    def fed_s(self, batch: Batch, keep: Callable[[Batch], None]) -> float:
        """Seconds in which they compute what they lack of the requests of a batch that is next;
        `keep` takes each batch of rows that come out."""
        self.extension.begins(batch)
        fed_s = 0.0
        for piece, _ in self.extension.fed(batch, SPAN_TOKENS):
            fed_s += batch_s(self.cost, piece)
            keep(piece)
        return fed_s


def missing_of(
    taken: Sequence[TakenLayers], resume: Resume, computed: dict[int, int], has_rows: HasRows
) -> tuple[int, ...]:
    """Requests with which a stage cannot go on that has taken layers, the latest last: what
    `ExtendedExecutor.begin_epoch` of `molink.engine.step.extended_stage` says."""
    if not taken:
        return resume.missing(computed, has_rows)
    missing: tuple[int, ...] = ()
    for one in reversed(taken):
        held = dict(one.extension.held) if resume.fresh else computed
        missing += one.extension.begin_epoch(resume, computed, has_rows)
        resume, computed = Resume(resume.requests), held
    return tuple(dict.fromkeys(missing))
