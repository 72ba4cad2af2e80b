"""Put a ring together: stages, links, and between them the core as the system uses it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from molink_scheduler.events import SampledToken, StageEvent
from molink_scheduler.head.micro_batches import MICRO_BATCH_COUNT_MAX
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.head.scheduler import HeadScheduler, HeadSettings
from molink_scheduler.head.settings import SPAN_TOKENS_MAX, STATE_CHUNK_TOKENS, RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvLedger, blocks_for
from molink_scheduler.request import ModelLimits
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore, WorkSource
from molink_scheduler.stage.queue import StageQueue
from molink_sim.clock import Clock
from molink_sim.network.line import BYTES_PER_MEGABIT, Line, Uplink, Window
from molink_sim.network.link import Deliver
from molink_sim.network.make import PAPER_POLICY, make_link
from molink_sim.network.paced import PacedLink
from molink_sim.outcome import Usage
from molink_sim.ring.baselines import FifoQueue, IterationHead
from molink_sim.ring.device import Device, OwnDevice, SharedDevice
from molink_sim.ring.messages import CODEC_RATIO
from molink_sim.ring.stage import Stage
from molink_sim.ring.tail import TOKEN_ID, Tail
from molink_sim.scenario import RingSpec, StageSpec, SystemSpec
from molink_sim.stage_profile import Curve

__all__ = ["Ring", "RingMaker"]

SAMPLES_COPY_BYTES = 40
"""What a copy of one token costs the tail's upload."""

ANY_MODEL = ModelLimits(sequence_tokens_max=1 << 31, vocabulary_size=TOKEN_ID + 1)
"""Of the sequences only the lengths are simulated; what a ring holds bounds those."""

Sampled = Callable[[tuple[SampledToken, ...]], None]


@dataclass(slots=True)
class Ring:
    """Stages in order; the first is the head."""

    stages: list[Stage]
    lines: list[Line]
    tokens_max: int


@dataclass(frozen=True, slots=True)
class RingMaker:
    """Builds the rings of one world."""

    clock: Clock
    system: SystemSpec
    seed: int
    usage: Callable[[str], Usage]
    """A new one for the lane of this name."""

    def ring(self, number: int, spec: RingSpec, sampled: Sampled) -> Ring:
        """A ring at rest; `sampled` hears of its tokens."""
        lines = [self._line(number, index, spec) for index in range(len(spec.stages))]
        device = self._device(spec)
        copies = _Copies(self.clock, lines[-1], spec.coordinator_one_way_s, sampled)
        ring = Ring([], lines, self._tokens_max(spec))
        for index in range(len(lines)):
            ring.stages.append(self._stage(number, index, spec, ring, device, copies))
        return ring

    def _line(self, number: int, index: int, spec: RingSpec) -> Line:
        upload_mbps = spec.stages[index].upload_mbps
        uplink = None if upload_mbps is None else Uplink(upload_mbps * BYTES_PER_MEGABIT)
        return Line(
            spec.links[index],
            self.usage(f"ring {number} link {index}"),
            random.Random(f"{self.seed} ring {number} link {index}"),
            uplink,
            self.system.hop_one_way_delays,
            self.system.hop_software_s,
            window=Window() if self.system.window_opens else None,
        )

    def _device(self, spec: RingSpec) -> Device:
        """Of all stages: nobody notices another one where compute time is real time."""
        if (pc := spec.on_one_pc) is not None:
            return SharedDevice(self.clock, pc.slowdown_together, pc.chunk_s)
        return OwnDevice(self.clock)

    def _stage(
        self,
        number: int,
        index: int,
        spec: RingSpec,
        ring: Ring,
        device: Device,
        copies: "_Copies",
    ) -> Stage:
        """One stage and the link that leaves it."""
        stage, system = spec.stages[index], self.system
        is_tail = index == len(spec.stages) - 1
        link = make_link(system, self.clock, ring.lines[index], _to_stage_after(ring, index))
        if isinstance(device, SharedDevice) and isinstance(link, PacedLink):
            link.handled = device.handle_chunk
        return Stage(
            clock=self.clock,
            device=device,
            cost=stage.cost,
            core=StageCore(self._queue(stage) if index else self._head(spec), is_tail),
            link=link,
            row_bytes=spec.row_bytes * system.tensors_per_hop * CODEC_RATIO[system.codec],
            usage=self.usage(f"ring {number} stage {index}"),
            layers=1 if system.prefill_blocks_decode else stage.layers,
            tail=Tail(),
            send_copy=copies,
            result_is_next_decode=system.policy == PAPER_POLICY,
            after_idle=Curve.through([(0.0, 0.0), *stage.after_idle]) if stage.after_idle else None,
        )

    def _head(self, spec: RingSpec) -> WorkSource:
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
        )
        scheduler = HeadScheduler(HeadSettings(terms, spec.row_bytes))
        scheduler.codec = system.codec
        return scheduler

    def _iteration_head(self, spec: RingSpec) -> IterationHead:
        return IterationHead(_kv_tokens(spec), self.system.micro_batches or len(spec.stages))

    def _tokens_max(self, spec: RingSpec) -> int:
        if self.system.prefill_blocks_decode:
            return self._iteration_head(spec).tokens_max
        return blocks_for(_kv_tokens(spec)) * BLOCK_TOKENS

    def _queue(self, stage: StageSpec) -> WorkSource:
        if self.system.prefill_blocks_decode:
            return FifoQueue()
        book = StageBook(KvLedger(blocks_for(stage.kv_tokens), stage.state_slots), ANY_MODEL)
        rows_max, hybrid = self.system.span_tokens or SPAN_TOKENS, stage.state_slots is not None
        return StageQueue.for_steps_of(rows_max, book, STATE_CHUNK_TOKENS if hybrid else 1)


def _kv_tokens(spec: RingSpec) -> int:
    return min(stage.kv_tokens for stage in spec.stages)


def _state_slots(spec: RingSpec) -> int | None:
    slots = (stage.state_slots for stage in spec.stages if stage.state_slots is not None)
    return min(slots, default=None)


def _to_stage_after(ring: Ring, index: int) -> Deliver:
    """Delivery to the next stage, which may not be there yet."""
    stages, following = ring.stages, (index + 1) % len(ring.lines)

    def deliver(message: StageEvent) -> None:
        stages[following].receive(message)

    return deliver


@dataclass(frozen=True, slots=True)
class _Copies:
    """The tail's copies of tokens, on their way to the coordinator."""

    clock: Clock
    line: Line
    one_way_s: float
    sampled: Sampled

    def __call__(self, tokens: tuple[SampledToken, ...]) -> None:
        left_at = self.clock.now
        if self.line.uplink is not None:
            left_at = self.line.uplink.finish(SAMPLES_COPY_BYTES * len(tokens), left_at)
        self.clock.at(left_at + self.one_way_s, self.sampled, tokens)
