"""Put a ring together: stages, links, and between them the core as the system uses it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from molink_scheduler.events import SampledToken
from molink_scheduler.head.micro_batches import MICRO_BATCH_COUNT_MAX
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.head.scheduler import HeadScheduler, HeadSettings
from molink_scheduler.head.settings import SPAN_TOKENS_MAX, RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.stage.order import StageOrder
from molink_scheduler.timing.decode_clock import DecodeClock
from molink_scheduler.timing.prefill_budget import PrefillBudget
from molink_scheduler.timing.step_profile import StepProfile
from molink_sim.clock import Clock
from molink_sim.hardware.interpolation import Curve
from molink_sim.network.line import BYTES_PER_MEGABIT, Line, Uplink, Window
from molink_sim.network.link import Link
from molink_sim.network.make import PAPER_POLICY, make_link
from molink_sim.network.paced import PacedLink
from molink_sim.ring.device import Device, OwnDevice, SharedDevice
from molink_sim.ring.foresight import ForeseeingStage, can_foresee
from molink_sim.ring.iteration_head import IterationHead
from molink_sim.ring.messages import CODEC_RATIO
from molink_sim.ring.sources import FifoSource, HeadSource, QueueSource, WorkSource
from molink_sim.ring.stage import Forecasts, Stage
from molink_sim.ring.tail import Tail
from molink_sim.scenario import RingSpec, StageSpec, SystemSpec
from molink_sim.usage import Usage

__all__ = ["Ring", "RingMaker"]

_FORECASTS = {"just_in_time": Forecasts.ROUNDS, PAPER_POLICY: Forecasts.STEPS}
"""By policy; the others do not ask when decode will come."""

SAMPLES_COPY_BYTES = 40
"""What a copy of one token costs the tail's upload."""


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
    foresight: bool = False
    """Whether stages may compute ahead of time what is certain (`molink_sim.ring.foresight`)."""

    def ring(self, number: int, spec: RingSpec, sampled: Sampled) -> Ring:
        """A ring at rest; `sampled` hears of its tokens."""
        count = len(spec.stages)
        lines = [self._line(number, index, spec) for index in range(count)]
        device = self._device(spec)
        stages = [
            self._stage(number, index, spec, line, device) for index, line in enumerate(lines)
        ]
        for stage, following in zip(stages, [*stages[1:], stages[0]], strict=True):
            stage.link.deliver = following.receive
            if isinstance(following, ForeseeingStage):
                following.hear_from(stage.link)
        tail = stages[-1]
        tail.tail = Tail()
        tail.tell_coordinator = _Copies(self.clock, lines[-1], spec.coordinator_one_way_s, sampled)
        return Ring(stages, lines, self._tokens_max(spec))

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

    def _stage(self, number: int, index: int, spec: RingSpec, line: Line, device: Device) -> Stage:
        """With its link, which leads nowhere as long as there is no next stage."""
        stage: StageSpec = spec.stages[index]
        foresight = self.foresight and can_foresee(self.system, spec)
        is_tail = index == len(spec.stages) - 1
        foreseen = foresight and not is_tail
        link = make_link(self.system, self.clock, line, _nowhere, foreseen=foreseen)
        if isinstance(device, SharedDevice) and isinstance(link, PacedLink):
            link.handled = device.handle_chunk
        row_bytes = spec.row_bytes * self.system.tensors_per_hop * CODEC_RATIO[self.system.codec]
        source = self._head(spec, link) if index == 0 else self._queue()
        layers = 1 if self.system.prefill_blocks_decode else stage.layers
        forecasts = _FORECASTS.get(self.system.policy, Forecasts.NONE)
        usage = self.usage(f"ring {number} stage {index}")
        return (ForeseeingStage if foresight and index > 0 else Stage)(
            *(self.clock, device, stage.cost, source, link, row_bytes, usage, layers, forecasts),
            after_idle=Curve.through([(0.0, 0.0), *stage.after_idle]) if stage.after_idle else None,
        )

    def _head(self, spec: RingSpec, link: Link) -> WorkSource:
        system = self.system
        if system.prefill_blocks_decode:
            return HeadSource(self._iteration_head(spec), link)
        candidates_max = min(2 * len(spec.stages), MICRO_BATCH_COUNT_MAX)
        terms = RingTerms(
            kv_tokens_capacity=_kv_tokens(spec),
            micro_batch_count=system.micro_batches,
            micro_batch_candidates=tuple(range(1, candidates_max + 1)),
            span_tokens=system.span_tokens and min(system.span_tokens, SPAN_TOKENS_MAX),
        )
        scheduler = HeadScheduler(HeadSettings(terms, spec.row_bytes))
        scheduler.codec = system.codec
        return HeadSource(scheduler, link)

    def _iteration_head(self, spec: RingSpec) -> IterationHead:
        return IterationHead(_kv_tokens(spec), self.system.micro_batches or len(spec.stages))

    def _tokens_max(self, spec: RingSpec) -> int:
        if self.system.prefill_blocks_decode:
            return self._iteration_head(spec).tokens_max
        return blocks_for(_kv_tokens(spec)) * BLOCK_TOKENS

    def _queue(self) -> WorkSource:
        if self.system.prefill_blocks_decode:
            return FifoSource()
        rows_max = self.system.span_tokens or SPAN_TOKENS
        return QueueSource(StageOrder(PrefillBudget(rows_max, DecodeClock(), StepProfile())))


def _kv_tokens(spec: RingSpec) -> int:
    return min(stage.kv_tokens for stage in spec.stages)


def _nowhere(message: object) -> None:
    raise AssertionError(f"{message} came out of a link that leads nowhere")


@dataclass(frozen=True, slots=True)
class _Copies:
    """The tail's copies of tokens, on their way to the coordinator."""

    clock: Clock
    line: Line
    one_way_s: float
    sampled: Sampled

    def __call__(self, tokens: tuple[SampledToken, ...], now: float) -> None:
        left_at = now
        if self.line.uplink is not None:
            left_at = self.line.uplink.finish(SAMPLES_COPY_BYTES * len(tokens), left_at)
        self.clock.at(left_at + self.one_way_s, self.sampled, tokens)
