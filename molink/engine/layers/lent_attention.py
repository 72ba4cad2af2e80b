"""Attention of a step of which some keys are at a lender.

Each span is attended to in two parts: over the blocks of its own device, and over those that are
away. Own blocks are attended while the lender answers, and the parts are joined, the lent one
first: all its keys lie before the others that count for a window, and an order that hung on who is
sooner would change the last bit of an answer.

Who sends what is a matter of bytes and of devices. A row's queries are as many as its heads, a lent
key has the kv heads twice: where the rows times the heads of a group are fewer than the lent keys
the queries go there. Else a card has the keys of one layer brought (`pulled`), as long spans of
prompts do; a CPU attends no sooner than the lender, and both do a part.

Shapes: T rows of the batch, R rows of the spans that have lent keys, H query heads, A head size of
keys, V of values.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from molink.engine.device.elements import elements_of, tensor_of
from molink.engine.layers.held_blocks import CPU, HeldBlocks
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.parts import Part, attend_part, joined
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine_protocol.lender import Lender, LentSpan
from molink_scheduler.kv.blocks import BLOCK_TOKENS


def is_sooner_pushed(device: torch.device, rows: int, group: int, keys: int) -> bool:
    """Whether a span's queries go to its lent keys, not the keys to them; `group`: query heads that
    share a kv head. A CPU has nothing that attends sooner than the lender does."""
    return device.type == "cpu" or rows * group < keys


@dataclass(slots=True)
class LentStep:
    """Attention of one step whose requests have lent some blocks."""

    lender: Lender
    own: RaggedBatch
    """The step's spans over the blocks that are here."""
    lent: dict[int, LentSpan]
    """Lent keys of those spans that have some, by the span's number."""
    held: HeldBlocks
    """Room for keys that come for one layer."""
    waited_s: float = field(init=False, default=0.0)
    """Seconds for which the step has waited for the lender so far, in all layers."""
    _plans: dict[tuple[int, ...], tuple[LentSpan, ...]] = field(init=False, default_factory=dict)
    """Plans for the lender, by the spans that it attends for."""

    @property
    def row_keys(self) -> int:
        """Lent keys that its rows read, all rows together."""
        return sum(one.rows * len(one.places) for one in self.lent.values()) * BLOCK_TOKENS

    @classmethod
    def of(
        cls,
        spans: Sequence[RaggedSpan],
        first_away: int,
        lender: Lender,
        held: HeldBlocks,
        device: torch.device = CPU,
    ) -> "LentStep | None":
        """The parts of these spans, whose blocks from `first_away` on are lent; None: none is.
        `device`: where the stage computes."""
        here, lent = [], {}
        for number, span in enumerate(spans):
            is_away = np.asarray(span.blocks, np.int32) >= first_away
            here.append(span.over_blocks(np.flatnonzero(~is_away).tolist()))
            if is_away.any():
                away = span.over_blocks(np.flatnonzero(is_away).tolist())
                places = [block - first_away for block in away.blocks]
                lent[number] = LentSpan(span.rows, away.start, places)
        if not lent:
            return None
        return cls(lender, RaggedBatch.of(here, device), lent, held)

    def attend(self, layer_index: int, rows: LayerRows) -> torch.Tensor:
        """Attention of all rows to all their keys, [T, H, V]; `rows` as they would attend where
        nothing is lent."""
        plain = replace(rows.variant, sinks_H=None)  # Sinks are for the join alone.
        group = rows.q_THA.shape[1] // rows.layer.keys.kv_heads
        pushed = tuple(
            number
            for number, span in self.lent.items()
            if is_sooner_pushed(
                rows.q_THA.device, span.rows, group, len(span.places) * BLOCK_TOKENS
            )
        )
        self._ask(layer_index, pushed, rows.q_THA, plain)
        mine = attend_part(replace(rows, batch=self.own), 1)
        away = _nothing(mine)
        began = time.perf_counter()
        if pushed:
            self._place(away, pushed, self._answer())
        for number in self.lent:
            if number not in pushed:
                self._place(away, (number,), self._pulled(layer_index, number, rows.q_THA, plain))
        self.waited_s += time.perf_counter() - began
        return joined([away, mine], rows.variant.sinks_H)

    def _ask(
        self, layer: int, pushed: tuple[int, ...], q_THA: torch.Tensor, plain: AttentionVariant
    ) -> None:
        if not pushed:
            return
        plan = self._plans.setdefault(pushed, tuple(self.lent[number] for number in pushed))
        self.lender.plan(plan)
        rows = [q_THA[self._rows(number)] for number in pushed]
        q_RHA = elements_of((torch.cat(rows) if len(rows) > 1 else rows[0]).cpu())
        self.lender.ask(layer, q_RHA, plain.scale, plain.softcap, None)

    def _answer(self) -> Part:
        out_RHV, sums_RH = self.lender.answer()
        return Part(0, tensor_of(out_RHV), torch.from_numpy(sums_RH))

    def _pulled(
        self, layer: int, number: int, q_THA: torch.Tensor, plain: AttentionVariant
    ) -> Part:
        span = self.lent[number]
        places = range(len(span.places))
        self.held.put_layer(layer, places, self.lender.take(layer, span.places))
        self.held.plan([LentSpan(span.rows, span.start, places)])
        return self.held.attend(layer, q_THA[self._rows(number)], None, plain)

    def _rows(self, number: int) -> slice:
        span = self.own.spans[number]
        return slice(span.row, span.row + span.rows)

    def _place(self, away: Part, numbers: Sequence[int], found: Part) -> None:
        """Write rows of a part of these spans where they stand in the batch."""
        first = 0
        for number in numbers:
            rows = self._rows(number)
            count = rows.stop - rows.start
            away.out_THV[rows] = found.out_THV[first : first + count]
            away.log_sums_TH[rows] = found.log_sums_TH[first : first + count]
            first += count


def _nothing(like: Part) -> Part:
    """Part of rows that see nothing there, before all others."""
    sums_TH = torch.full_like(like.log_sums_TH, -torch.inf)
    return Part(like.order - 1, torch.zeros_like(like.out_THV), sums_TH)
