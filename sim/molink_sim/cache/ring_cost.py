"""Costs of prompts and answers on a ring, with no step of them simulated.

Prompts: every span passes every stage and every link, one behind the other, so a prompt holds up
the next one for as long as the slowest stage or the slowest link needs for all of its spans. Its
first token comes later still, by what its slowest span needs for the rest of the ring: the last
whole one, which has the most before it.

Answers: `RoundModel`, with which heads choose how many micro-batches circle, tells how long a round
takes and what it takes of the slowest stage and of the slowest link. Decode goes first, so prompts
have what is left of both.

The full simulator has every batch, chunk and acknowledgement, and needs minutes for what takes
seconds here; docs/decisions/0053-a-coarse-ring-for-long-traces.md says how far the two are apart.
"""

from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.head.prompt_queue import SPAN_TOKENS, SPAN_TOKENS_MIN, SPAN_WIRE_S
from molink_scheduler.stage.queue import DECODES_BEFORE_PREFILL_MAX
from molink_scheduler.timing.round_model import (
    PREFILL_SHARE_FULL,
    HopCost,
    RoundModel,
    StageCost,
    best_beside_prefill,
    best_micro_batch_count,
)
from molink_sim.cache.trace import BLOCK_TOKENS
from molink_sim.scenario import LinkSpec, RingSpec, StepCost

BYTES_PER_MBIT = 125_000

BUSY_ROWS = 8
"""A line through one row and so many stands for a stage's decode steps, as placement has it."""

CONTEXT_STEP_TOKENS = 1024
"""Rounds are worked out for mean contexts in these steps, and remembered."""

PREFILL_DELAY_S = 0.013
"""How much later a decode step comes over a hop that carries a prompt, and through the stage
behind it (docs/decisions/0008-prefill-makes-room.md)."""


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """Time that a prompt's tokens take of the slowest stage, and of the slowest link."""

    stage_s: float
    link_s: float
    fill_s: float = 0.0
    """Seconds from the end of its work on the slowest part until its first token is there."""


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """A round of all who get answers, and the shares it takes of the slowest stage and link."""

    tpot_s: float
    stage_share: float
    link_share: float

    def prefill_s(self, work: PrefillWork) -> float:
        """How long a prompt takes of the slowest part beside it."""
        return max(work.stage_s / (1 - self.stage_share), work.link_s / (1 - self.link_share))


IDLE = DecodeLoad(0.0, 0.0, 0.0)
"""Nobody gets an answer."""


class RingCost(Protocol):
    """Times and room of one ring."""

    @property
    def capacity_tokens(self) -> int:
        """KV that every stage holds."""

    @property
    def answers_here(self) -> bool:
        """Else answers are generated somewhere else, and only prompts are computed."""

    def prefill(self, cached_tokens: int, tokens: int) -> PrefillWork:
        """Work for a prompt of so many tokens, of which the first ones are cached."""

    def decode(self, answers: int, context_tokens: float, *, beside_prefill: bool) -> DecodeLoad:
        """A round of so many answers with so many tokens of context on average."""


@dataclass(slots=True)
class PipelineCost:
    """Cost of stages and links in a ring."""

    ring: RingSpec
    capacity_tokens: int
    answers_here: bool = True
    _span_tokens: int = field(init=False)
    _stage_s: list[float] = field(init=False, default_factory=lambda: [0.0])
    """Seconds of the slowest stage, for the first so many blocks of a prompt."""
    _rounds: dict[tuple[int, int, bool], DecodeLoad] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        rows = [SPAN_WIRE_S / self._row_s(link) for link in self._hops]
        self._span_tokens = max(SPAN_TOKENS_MIN, int(min([SPAN_TOKENS, *rows])))

    @property
    def _hops(self) -> tuple[LinkSpec, ...]:
        """Links that rows travel on; the last one of a ring carries tokens only."""
        return self.ring.links[: len(self.ring.stages) - 1]

    def _row_s(self, link: LinkSpec) -> float:
        return self.ring.row_bytes / (link.mbps * BYTES_PER_MBIT)

    def _steps_s(self, rows: int, end_tokens: int) -> list[float]:
        """A span of so many rows that ends there in its prompt, on each stage."""
        return [
            stage.cost.step_s(PREFILL, rows, max(rows, end_tokens), 1) for stage in self.ring.stages
        ]

    def _fill_s(self, rows: int, end_tokens: int) -> float:
        """Seconds of a span on all stages and links but the slowest of them."""
        steps = self._steps_s(rows, end_tokens)
        wires = [rows * self._row_s(link) for link in self._hops]
        delays = sum(link.one_way_s for link in self.ring.links) if self._hops else 0.0
        return sum(steps) + sum(wires) + delays - max(steps + wires)

    def prefill(self, cached_tokens: int, tokens: int) -> PrefillWork:
        """Work for a prompt of so many tokens, of which the first ones are cached."""
        rows = tokens - cached_tokens
        stage_s = self._stage_until_s(tokens) - self._stage_until_s(cached_tokens)
        stage_s += self._extra_s(rows % self._span_tokens, tokens)
        row_s = max((self._row_s(link) for link in self._hops), default=0.0)
        fill_s = self._fill_s(min(rows, self._span_tokens), tokens)
        return PrefillWork(stage_s, row_s * rows, fill_s)

    def _extra_s(self, rows: int, end_tokens: int) -> float:
        """Seconds that a last span of fewer rows takes beyond its share of a whole one."""
        if not rows:
            return 0.0
        whole_s = max(self._steps_s(self._span_tokens, end_tokens))
        return max(self._steps_s(rows, end_tokens)) - whole_s * rows / self._span_tokens

    def _stage_until_s(self, tokens: int) -> float:
        blocks, rest = divmod(tokens, BLOCK_TOKENS)
        while len(self._stage_s) < blocks + 2:
            self._stage_s.append(self._stage_s[-1] + self._block_s(len(self._stage_s) - 1))
        low, high = self._stage_s[blocks], self._stage_s[blocks + 1]
        return low + (high - low) * rest / BLOCK_TOKENS

    def _block_s(self, block: int) -> float:
        """A block of a prompt on the stage that needs longest for it."""
        middle = block * BLOCK_TOKENS + BLOCK_TOKENS // 2
        steps = BLOCK_TOKENS / self._span_tokens
        return steps * max(self._steps_s(self._span_tokens, middle + self._span_tokens // 2))

    def decode(self, answers: int, context_tokens: float, *, beside_prefill: bool) -> DecodeLoad:
        """A round of so many answers with so many tokens of context on average."""
        if not answers:
            return IDLE
        context = round(context_tokens / CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
        key = answers, context, beside_prefill
        if key not in self._rounds:
            self._rounds[key] = self._round(*key)
        return self._rounds[key]

    def _round(self, answers: int, context: int, beside_prefill: bool) -> DecodeLoad:
        model = self._round_model(context, PREFILL_DELAY_S if beside_prefill else 0.0)
        counts = range(1, 2 * len(self.ring.stages) + 1)
        if beside_prefill:
            count = best_beside_prefill(model, answers, counts, PREFILL_SHARE_FULL, 1)
        else:
            count = best_micro_batch_count(model, answers, counts, 1)
        count = min(count, answers)
        cycle_s, device_s = model.cycle_and_device_s(answers, count)
        wire_s = answers * max((hop.row_s for hop in model.hops), default=0.0)
        most = 1 - self._least_share(device_s / count)
        return DecodeLoad(cycle_s, min(most, device_s / cycle_s), min(most, wire_s / cycle_s))

    def _least_share(self, step_s: float) -> float:
        """Least share of a stage for prompts: so many decode steps may pass a waiting span."""
        span_s = max(self._steps_s(self._span_tokens, 0))
        return span_s / (span_s + DECODES_BEFORE_PREFILL_MAX * step_s)

    def _round_model(self, context: int, delay_s: float) -> RoundModel:
        stages = tuple(_line(stage.cost, context) for stage in self.ring.stages)
        hops = [HopCost(link.one_way_s + delay_s, self._row_s(link)) for link in self._hops]
        if hops:
            hops.append(HopCost(self.ring.links[-1].one_way_s, 0.0))
        return RoundModel(stages, tuple(hops))


def _line(cost: StepCost, context: int) -> StageCost:
    one_s, busy_s = (cost.step_s(DECODE, rows, rows * context, rows) for rows in (1, BUSY_ROWS))
    row_s = (busy_s - one_s) / (BUSY_ROWS - 1)
    return StageCost(one_s - row_s, row_s)
