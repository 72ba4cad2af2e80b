"""Put a ring together: stages, links, and between them the core as the system uses it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from molink_scheduler.batch import MICRO_BATCH_COUNT_MAX, Admission
from molink_scheduler.head.kept_requests import KeptRequests
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import (
    SPAN_TOKENS_MAX,
    STATE_CHUNK_TOKENS,
    HeadSettings,
    RingTerms,
)
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.request import ModelLimits
from molink_scheduler.resume import Resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore, WorkSource
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.timing.steps import fed_rows_max
from molink_sim.clock import Clock
from molink_sim.network.line import BYTES_PER_MEGABIT, Line, Uplink, Window
from molink_sim.network.link import Deliver, ForecastIgnored, Link, Sent
from molink_sim.network.make import make_link
from molink_sim.network.paced import PacedLink
from molink_sim.outcome import BusyTimes
from molink_sim.ring.baselines import FifoStageQueue, IterationHead
from molink_sim.ring.device import Device, OwnDevice, SharedDevice
from molink_sim.ring.drafter import Drafter
from molink_sim.ring.messages import CODEC_RATIO
from molink_sim.ring.simulated_store import SimulatedStore
from molink_sim.ring.stage import Stage
from molink_sim.ring.tail import TOKEN_ID, Tail
from molink_sim.ring.taken_layers import RingNode, nodes_of, with_nodes
from molink_sim.ring.unasked import UnaskedForecast
from molink_sim.scenario import RingSpec, StageSpec, SystemSpec
from molink_sim.stage_profile import Curve

SAMPLES_COPY_BYTES = 40
"""Bytes that a copy of one token costs the tail's upload."""

ANY_MODEL = ModelLimits(sequence_tokens_max=1 << 31, vocabulary_size=TOKEN_ID + 2)
"""Limits that bind nothing: only lengths are simulated, and what a ring holds bounds those."""

Sampled = Callable[[Sent], None]
Admitted = Callable[[tuple[Admission, ...]], None]


@dataclass(slots=True)
class Ring:
    """Stages in order; the first is the head."""

    number: int
    spec: RingSpec
    epoch: int
    """Epoch that its stages are in, or on their way to."""
    device: Device
    """Device of all stages: nobody notices another one where compute time is real time."""
    tokens_max: int
    stages: list[Stage] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    """Links that leave the stages, one each."""
    whole: RingSpec = field(init=False)
    """Description of the ring as it began."""
    nodes: tuple[RingNode, ...] = field(init=False)
    """Node in each place, with the layers that it is to have in this epoch."""
    places: dict[int, int] = field(init=False)
    """Place of each node, by its place when the ring began."""
    _targets: dict[int, int] = field(init=False, default_factory=dict)
    """To which node each node's link leads, both by their places when the ring began."""

    def __post_init__(self) -> None:
        self.whole = self.spec
        self._name(nodes_of(self.spec))

    def _name(self, nodes: tuple[RingNode, ...]) -> None:
        self.nodes = nodes
        self.places = {node.origin: place for place, node in enumerate(nodes)}

    def keep(self, nodes: tuple[RingNode, ...]) -> None:
        """Keep these nodes only, on the way into an epoch in which each has these layers."""
        if nodes == self.nodes:
            return
        places = [self.places[node.origin] for node in nodes]
        self.stages[:] = [self.stages[place] for place in places]
        self.lines[:] = [self.lines[place] for place in places]
        self.links[:] = [self.links[place] for place in places]
        self.spec = with_nodes(self.whole, nodes)
        self._name(nodes)

    def link_to_next(self, place: int) -> Deliver:
        """Delivery of the link that is to leave a place."""
        target = self._target(place)
        self._targets[self.nodes[place].origin] = target
        return self.delivery_to(target)

    def leads_to_next(self, place: int) -> bool:
        """Whether the link that leaves a place leads to the next one, which may be another now."""
        return self._targets[self.nodes[place].origin] == self._target(place)

    def _target(self, place: int) -> int:
        return self.nodes[(place + 1) % len(self.nodes)].origin

    def to_head(self) -> Deliver:
        """Delivery from the coordinator to the head that the ring has now."""
        deliver = self.delivery_to(self.nodes[0].origin)
        if isinstance(self.device, SharedDevice):
            return partial(self.device.take_in, deliver)
        return deliver

    def delivery_to(self, origin: int) -> Deliver:
        """Delivery to the stage on a node, which may not be there yet, or no more."""

        def deliver(sent: Sent) -> None:
            place = self.places.get(origin)
            if place is not None:
                self.stages[place].receive(sent)

        return deliver

    def lose(self, place: int) -> None:
        """The process of a stage is gone; nothing more leaves it, and nothing is acknowledged."""
        if self.stages[place].is_lost:
            return
        self.stages[place].lose()
        for link in (self.links[place], self.links[place - 1]):
            if isinstance(link, PacedLink):
                link.cut()

    def suspend(self, place: int, until: float) -> None:
        """The host of a stage sleeps."""
        self.stages[place].suspend(until)
        own, before = self.links[place], self.links[place - 1]
        if isinstance(own, PacedLink):
            own.hold(until)
        if isinstance(before, PacedLink):
            before.deafen(until)


@dataclass(frozen=True, slots=True)
class RingMaker:
    """Builds the rings of one world."""

    clock: Clock
    system: SystemSpec
    seed: int
    usage: Callable[[str], BusyTimes]
    """A new one for the lane of this name."""
    keeps_rows: bool
    """Whether stages log their rows, because one may be replaced."""
    admitted: Admitted
    """Hears whom heads begin."""

    def ring(self, number: int, spec: RingSpec, epoch: int, sampled: Sampled) -> Ring:
        """A ring at rest; `sampled` hears of its tokens."""
        ring = Ring(number, spec, epoch, self._device(spec), self._tokens_max(spec))
        copies = _Copies(self.clock, ring, sampled)
        for index in range(len(spec.stages)):
            ring.lines.append(self._line(ring, index))
            ring.links.append(self._link(ring, index))
            ring.stages.append(self._stage(ring, index, copies, Resume()))
        return ring

    def relink(self, ring: Ring, place: int) -> None:
        """Another connection from a stage whose next one was replaced; what waited is gone."""
        old = ring.lines[place]
        ring.lines[place] = self._line(ring, place, old.uplink)
        old.usage, old.uplink = BusyTimes("lost", 0.0, 0.0), None
        ring.links[place] = ring.stages[place].link = self._link(ring, place)

    def replace(self, ring: Ring, place: int, resume: Resume) -> None:
        """Another stage with the layers of one that was lost, and links to it and from it."""
        ring.stages[place] = self._stage(ring, place, ring.stages[place].send_copy, resume)
        self.relink(ring, place)
        before = (place - 1) % len(ring.stages)
        if not ring.stages[before].is_lost:
            self.relink(ring, before)

    def new_core(
        self, ring: Ring, index: int, resume: Resume, missing: frozenset[int] = frozenset()
    ) -> StageCore:
        """Decision maker of a stage from the moment at which it joins."""
        spec, is_tail = ring.spec, index == len(ring.spec.stages) - 1
        source = (
            self._head(spec, resume, missing)
            if index == 0
            else self._queue(spec, spec.stages[index], resume)
        )
        core = StageCore(source, is_tail, resume)
        if isinstance(ring.links[index], ForecastIgnored):
            core.forecast = UnaskedForecast()
        return core

    def _line(self, ring: Ring, index: int, uplink: Uplink | None = None) -> Line:
        upload_mbps = ring.spec.stages[index].upload_mbps
        if uplink is None and upload_mbps is not None:
            uplink = Uplink(upload_mbps * BYTES_PER_MEGABIT)
        lane = f"ring {ring.number} link {ring.nodes[index].origin}"
        return Line(
            ring.spec.links[index],
            self.usage(lane),
            random.Random(f"{self.seed} {lane}"),
            uplink,
            self.system.hop_one_way_delays,
            self.system.hop_software_s,
            window=Window() if self.system.window_opens else None,
        )

    def _device(self, spec: RingSpec) -> Device:
        if (pc := spec.on_one_pc) is not None:
            return SharedDevice(self.clock, pc.slowdown_together, pc.chunk_s, pc.hop_s)
        return OwnDevice(self.clock)

    def _link(self, ring: Ring, index: int) -> Link:
        """Link that leaves a stage, over the wire that does."""
        to_next = ring.link_to_next(index)
        link = make_link(self.system, self.clock, ring.lines[index], to_next)
        if isinstance(ring.device, SharedDevice) and isinstance(link, PacedLink):
            link.handled, link.wake = ring.device.handle_chunk, ring.device.wake
        return link

    def _stage(self, ring: Ring, index: int, copies: Sampled, resume: Resume) -> Stage:
        """Stage whose link is there."""
        spec, system = ring.spec, self.system
        stage = spec.stages[index]
        log_rows = stage.replay_log_bytes / spec.row_bytes
        return Stage(
            clock=self.clock,
            device=ring.device,
            cost=stage.cost,
            core=self.new_core(ring, index, resume),
            link=ring.links[index],
            row_bytes=spec.row_bytes * system.tensors_per_hop * CODEC_RATIO[system.codec],
            usage=self.usage(f"ring {ring.number} stage {ring.nodes[index].origin}"),
            layers=1 if system.prefill_blocks_decode else stage.layers,
            tail=Tail(),
            send_copy=copies,
            admitted=self.admitted if index == 0 else _unheard,
            epoch=ring.epoch,
            log=ReplayLog(log_rows) if self.keeps_rows else None,
            parts=ring.nodes[index].parts,
            lower=SimulatedStore(_tiers(spec)),
            drafter=Drafter(system.drafter, random.Random(f"{self.seed} drafter {ring.number}")),
            after_idle=Curve.through([(0.0, 0.0), *stage.after_idle]) if stage.after_idle else None,
        )

    def _head(self, spec: RingSpec, resume: Resume, missing: frozenset[int]) -> WorkSource:
        system = self.system
        if system.prefill_blocks_decode:
            return self._iteration_head(spec)
        candidates_max = min(2 * len(spec.stages), MICRO_BATCH_COUNT_MAX)
        terms = RingTerms(
            kv_tokens_capacity=_kv_tokens(spec),
            micro_batch_count=system.micro_batches,
            micro_batch_candidates=tuple(range(1, candidates_max + 1)),
            span_tokens=system.span_tokens and min(system.span_tokens, SPAN_TOKENS_MAX),
            state_slots=_state_slots(spec),
            prefix_cache=system.prefix_cache,
            tiers=_tiers(spec),
            fifo_prompts=system.fifo_prompts,
            draft_width_max=system.drafter.width,
            drafts_at_head=not system.drafter.at_tail,
            drafts_at_tail=system.drafter.at_tail,
        )
        scheduler = HeadScheduler(
            HeadSettings(terms, spec.row_bytes), KeptRequests(resume, missing)
        )
        scheduler.codec = system.codec
        return scheduler

    def _iteration_head(self, spec: RingSpec) -> IterationHead:
        count = self.system.micro_batches or len(spec.stages)
        return IterationHead(_kv_tokens(spec), count, self.system.prompts_alone)

    def _tokens_max(self, spec: RingSpec) -> int:
        if self.system.prefill_blocks_decode:
            return self._iteration_head(spec).tokens_max
        return blocks_for(_kv_tokens(spec)) * BLOCK_TOKENS

    def _queue(self, spec: RingSpec, stage: StageSpec, resume: Resume) -> WorkSource:
        if self.system.prefill_blocks_decode:
            return FifoStageQueue()
        ledger = KvLedger(blocks_for(stage.kv_tokens), stage.state_slots)
        book = StageBook(BlockTable(ledger, _tiers(spec)), ANY_MODEL)
        book.resume(resume)
        rows_max, hybrid = self.system.span_tokens or SPAN_TOKENS, stage.state_slots is not None
        fed_max = fed_rows_max(self.system.span_tokens, passed_on=resume.next_fresh)
        cut_tokens = STATE_CHUNK_TOKENS if hybrid else 1
        return StageQueue.for_steps_of(rows_max, book, cut_tokens, fed_max)


def _kv_tokens(spec: RingSpec) -> int:
    return min(stage.kv_tokens for stage in spec.stages)


def _tiers(spec: RingSpec) -> CacheTiers:
    return CacheTiers.of_ring([stage.tiers for stage in spec.stages])


def _unheard(admissions: tuple[Admission, ...]) -> None:
    """What stages behind the head begin was begun by it."""


def _state_slots(spec: RingSpec) -> int | None:
    slots = (stage.state_slots for stage in spec.stages if stage.state_slots is not None)
    return min(slots, default=None)


@dataclass(frozen=True, slots=True)
class _Copies:
    """The tail's copies of tokens, on their way to the coordinator."""

    clock: Clock
    ring: Ring
    sampled: Sampled

    def __call__(self, sent: Sent) -> None:
        left_at, uplink = self.clock.now, self.ring.lines[-1].uplink
        if uplink is not None:
            left_at = uplink.finish(SAMPLES_COPY_BYTES * len(sent.what), left_at)
        sampled, device = self.sampled, self.ring.device
        if isinstance(device, SharedDevice):  # A chunk as any other, at both ends.
            device.handle_chunk()
            sampled = partial(device.take_in, sampled)
        self.clock.at(left_at + self.ring.spec.coordinator_one_way_s, sampled, sent)
