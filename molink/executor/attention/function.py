"""The attention function that every model of this process calls: ragged batches over a paged KV
pool.

transformers lets us register attention under a name; models then call it with their finished
queries, keys and values, from inside their own forward. It finds the step under way in a context
variable, writes K and V to the pool and attends each sequence over its own slots. No mask is ever
built by the library.

A layer that keeps state elsewhere (a recurrence, a convolution) would come out wrong without any
error, so the step also notes which layers called: exactly the owned ones, once each, is what
`StageExecutor` checks.

Shapes: T rows, H query heads, K kv heads, A head size of keys, V of values, N keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from molink.errors import UnsupportedModelError
from molink.executor.attention.attention_math import (
    AttentionVariant,
    attend_causal,
    attend_packed,
    causal_mask,
)
from molink.executor.attention.kv_pool import KvPool, LayerKv
from molink.executor.attention.kv_rows import KvRows
from molink.executor.attention.step_plan import (
    DecodeGroup,
    KeyRange,
    SpanPlace,
    StepPlan,
    group_decodes,
)
from molink.executor.cpu import native_attention

__all__ = ["ATTENTION_NAME", "AttentionStep", "active_step"]

ATTENTION_NAME = "molink"
"""The name under which the library knows this function."""

WITHOUT_EFFECT = frozenset(
    {
        "dropout",
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)
"""Arguments that models hand on and that change nothing here: stages do not train, positions have
been worked into queries and keys, KV is kept by the step, and what else a model returns is none of
attention's business."""


@dataclass(slots=True)
class AttentionStep:
    """Attention of one step: where rows stand, where K and V are kept, which layers called."""

    plan: StepPlan
    pool: KvPool
    before_attention: Callable[[], None] | None = None
    """Called by every layer before it attends: other steps may run inside, this one waits."""
    layers_called: list[int] = field(default_factory=list)


_active: ContextVar[AttentionStep] = ContextVar("molink_attention_step")


@contextmanager
def active_step(step: AttentionStep) -> Iterator[None]:
    """Make `step` the one that models computed inside the block belong to."""
    token = _active.set(step)
    try:
        yield
    finally:
        _active.reset(token)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [1, H, T, A] queries; returns [1, T, H, V] as the library expects.

    Raises UnsupportedModelError for a mask, and for any argument that is not known to be without
    effect: block selections and biases may only show in sequences longer than the self-test's.
    """
    _refuse_unknown(module, {"attention_mask": attention_mask} | others)
    step = _active.get()
    if step.before_attention is not None:
        step.before_attention()
    step.layers_called.append(module.layer_idx)
    variant = AttentionVariant(
        query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux
    )
    layer = step.pool.write(
        module.layer_idx, step.plan.slots_T, key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    rows = LayerRows(step, layer, query[0].transpose(0, 1), sliding_window or None, variant)
    return rows.attend()[None], None


def _refuse_unknown(module: Any, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and name not in WITHOUT_EFFECT:
            raise UnsupportedModelError(
                f"{type(module).__name__} cannot be cut into stages: it hands its attention "
                f"{name!r}, which the stages' attention does not compute"
            )


@dataclass(slots=True)
class LayerRows:
    """Query rows of one layer's attention call, and what they attend to."""

    step: AttentionStep
    layer: LayerKv
    q_THA: torch.Tensor
    window: int | None
    variant: AttentionVariant

    def attend(self) -> torch.Tensor:
        """Attend all rows; [T, H, V]."""
        out_THV = self.q_THA.new_empty(*self.q_THA.shape[:2], self.layer.values.size)
        decodes, spans = self.step.plan.once(("split", self.window), self._split)
        if decodes:
            self._decodes(decodes, out_THV)
        for span in spans:
            self._span(span, out_THV)
        return out_THV

    def _split(self) -> tuple[list[KeyRange], list[SpanPlace]]:
        """Decode rows that can share a call, and the spans that get a call each."""
        decodes, spans = [], []
        for span in self.step.plan.spans:
            if span.tokens == 1 and span.start_slot is not None:
                first = self._first_key(span)
                decodes.append(KeyRange(span.row, span.start_slot + first, span.kv_tokens - first))
            else:
                spans.append(span)
        return decodes, spans

    def _decodes(self, decodes: list[KeyRange], out_THV: torch.Tensor) -> None:
        plan = self.step.plan
        kernels = native_attention.kernels_for(self.q_THA, self.layer)
        if kernels is not None:
            ranges = plan.once(
                ("ranges", self.window), lambda: native_attention.key_ranges(decodes)
            )
            kernels.decodes(self.q_THA, self.layer, ranges, self.variant, out_THV)
            return
        groups = plan.once(("groups", self.window), lambda: self._groups(decodes))
        for group, rows in groups:
            out_THV[rows] = self._group(group, rows)

    def _groups(self, decodes: list[KeyRange]) -> list[tuple[DecodeGroup, slice | torch.Tensor]]:
        groups = group_decodes(decodes, self.step.pool.slots)
        return [(group, group.rows_index(self.q_THA.device)) for group in groups]

    def _first_key(self, span: SpanPlace) -> int:
        """First position that any row of the span can see."""
        if self.window is None:
            return 0
        return max(0, span.kv_tokens - span.tokens - self.window + 1)

    def _group(self, group: DecodeGroup, rows: slice | torch.Tensor) -> torch.Tensor:
        q_BHA = self.q_THA[rows]
        batch, heads, head_size = q_BHA.shape
        place = (group.start_slot, group.stride_slots, batch, group.tokens)
        mask = self.step.plan.once(
            (group, self.q_THA.dtype), lambda: group.mask(self.q_THA.dtype, self.q_THA.device)
        )
        out_BKGV = attend_packed(
            q_BHA.reshape(batch, self.layer.keys.kv_heads, -1, head_size),
            self.layer.keys.spaced(*place).numbers(q_BHA.dtype),
            self.layer.values.spaced(*place).numbers(q_BHA.dtype),
            mask,
            self.variant,
        )
        return out_BKGV.reshape(batch, heads, -1)

    def _span(self, span: SpanPlace, out_THV: torch.Tensor) -> None:
        """The rows of one span, over keys that are a view or gathered."""
        first = self._first_key(span)
        seen = LayerKv(
            self._read(self.layer.keys, span, first, 0),
            self._read(self.layer.values, span, first, 1),
        )
        rows = slice(span.row, span.row + span.tokens)
        kernels = native_attention.kernels_for(self.q_THA, self.layer)
        if kernels is not None:
            kernels.span(self.q_THA[rows], seen, self.window, self.variant, out_THV[rows])
        else:
            out_THV[rows] = self._span_by_torch(span, seen)

    def _span_by_torch(self, span: SpanPlace, seen: LayerKv) -> torch.Tensor:
        k_KNA = seen.keys.numbers(self.q_THA.dtype).transpose(0, 1)
        v_KNV = seen.values.numbers(self.q_THA.dtype).transpose(0, 1)
        q_HTA = self.q_THA[span.row : span.row + span.tokens].transpose(0, 1)
        # A prompt's first span attends to itself alone: the fused causal kernel needs no mask.
        is_first = span.kv_tokens == span.tokens
        if is_first and self.variant.is_plain and (self.window or span.tokens) >= span.tokens:
            return attend_causal(q_HTA, k_KNA, v_KNV, self.variant.scale).transpose(0, 1)
        # Query heads that share a kv head become rows of one problem, which reads the keys once.
        heads, tokens, head_size = q_HTA.shape
        q_KRA = q_HTA.reshape(len(k_KNA), -1, head_size)
        mask = self._span_mask(tokens, k_KNA.shape[1], heads // len(k_KNA))
        out_KRV = attend_packed(q_KRA[None], k_KNA[None], v_KNV[None], mask, self.variant)[0]
        return out_KRV.reshape(heads, tokens, -1).transpose(0, 1)

    def _span_mask(self, rows: int, keys: int, group: int) -> torch.Tensor | None:
        if rows == 1:
            return None
        dtype, device = self.q_THA.dtype, self.q_THA.device
        shape = (rows, keys, self.window, group, dtype, device)
        mask: torch.Tensor = self.step.plan.once(shape, lambda: causal_mask(*shape))
        return mask

    def _read(self, source: KvRows, span: SpanPlace, first: int, which: int) -> KvRows:
        """Keys or values of positions [first, end) of a sequence: a view, or a gathered copy."""
        if span.start_slot is not None:
            return source.between(span.start_slot + first, span.start_slot + span.kv_tokens)
        assert span.slots_N is not None
        return self.step.pool.gather(source, span.slots_N[first:], which)


AttentionInterface.register(ATTENTION_NAME, attend)
