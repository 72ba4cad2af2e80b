"""Cuts of the KV of one stage's requests: what of a prompt most layers go on with (`prompt_cut`).

Until its last row is computed, a prompt is kept and attended to whole. Meanwhile the queries of its
last rows are set aside, layer by layer. When the step that computes the last one is over, each kv
head chooses by them (`key_scores`), and what is kept moves together, to where it belongs to the
request alone. From then on its rows stand in two ways: by their positions in the layers that keep
all, some places earlier in the others, where block tables begin behind what was left out
(`step_plan`). Nothing else changes: all kernels read tables.

Keys are moved when the whole step is over, so one that fails may be computed again until then.

Shapes: R rows, H query heads, A head size of keys, K kv heads, P tokens of a prompt, N of them that
are kept.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.key_scores import chosen_tokens, key_scores
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.errors import StageError
from molink_scheduler.batch import Admission, Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks
from molink_scheduler.prompt_cut import SCORED_ROWS, PromptCut


@dataclass(slots=True)
class LastQueries:
    """Queries of a prompt's last rows in one layer."""

    variant: AttentionVariant
    pieces: dict[int, torch.Tensor] = field(default_factory=dict)
    """Rows [R, H, A] of each span that has some, by the position of the first."""

    def joined(self) -> torch.Tensor:
        """All of them in order, [R, H, A]."""
        q_RHA = torch.cat([self.pieces[start] for start in sorted(self.pieces)])
        assert len(q_RHA) == SCORED_ROWS, "a prompt that is cut is computed from its first row on"
        return q_RHA


@dataclass(slots=True)
class _CutRequest:
    cut: PromptCut
    queries: dict[int, LastQueries] = field(default_factory=dict)
    """Queries of each layer, until it is cut."""
    is_done: bool = False


@dataclass(slots=True)
class PromptCuts:
    """Cuts of one stage's requests; of a request without a budget it knows nothing."""

    _requests: dict[int, _CutRequest] = field(init=False, default_factory=dict)

    def admit(self, admission: Admission) -> None:
        """Learn where a request is to be cut, if it is."""
        if admission.cut.is_cut:
            self._requests[admission.request_id] = _CutRequest(admission.cut)

    def release(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""
        self._requests.pop(request_id, None)

    @property
    def requests(self) -> Collection[int]:
        """Requests that are cut, or will be."""
        return self._requests.keys()

    def rows_inside(self, batch: Batch) -> list[int]:
        """Rows of a batch, which may admit requests, before which a step has to end, as a prompt
        does inside of a span."""
        ends = {one: known.cut.prompt_tokens for one, known in self._requests.items()}
        cuts = ((one.request_id, one.cut) for one in batch.admissions)
        ends.update((request_id, cut.prompt_tokens) for request_id, cut in cuts if cut.is_cut)
        found, row = list[int](), 0
        for span in batch.spans if ends else ():
            if span.start < (end := ends.get(span.request_id, 0)) < span.end:
                found.append(row + end - span.start)
            row += span.tokens
        return found

    def behind(self, span: Span) -> PromptCut | None:
        """The cut that a span of a request lies behind; None: it attends to all before it."""
        known = self._requests.get(span.request_id)
        if known is None:
            return None
        if span.start >= known.cut.prompt_tokens:
            return known.cut if known.is_done else self._refuse(span, "was not cut")
        if known.is_done or span.end > known.cut.prompt_tokens:
            self._refuse(span, "goes back behind its cut, or over it")
        return None

    def is_behind_any(self, batch: Batch) -> bool:
        """Whether a batch has rows behind a cut."""
        return any(self.behind(span) for span in batch.spans if self._requests)

    def watched(self, batch: Batch) -> "WatchedRows | None":
        """The rows of a batch whose queries are to be set aside; None: it has none."""
        rows = list(self._watched(batch.spans)) if self._requests else []
        return WatchedRows(rows) if rows else None

    def _watched(self, spans: Sequence[Span]) -> Iterator[tuple[_CutRequest, int, slice]]:
        row = 0
        for span in spans:
            known = self._requests.get(span.request_id)
            if known is not None and span.end <= (end := known.cut.prompt_tokens):
                first = max(span.start, end - SCORED_ROWS)
                if first < span.end:
                    yield known, first, slice(row + first - span.start, row + span.tokens)
            row += span.tokens

    def computed(self, spans: Sequence[Span], kv: KvBlocks, pool: KvPool) -> None:
        """A step is over: cut the prompts that it has ended."""
        for span in spans if self._requests else ():
            known = self._requests.get(span.request_id)
            if known is not None and span.end == known.cut.prompt_tokens:
                _cut(known, kv.table(span.request_id), pool)

    def _refuse(self, span: Span, why: str) -> NoReturn:
        raise StageError(f"request {span.request_id} {why}: it cannot go on from {span.start}")


@dataclass(slots=True)
class WatchedRows:
    """Rows of one step whose queries choose what is kept."""

    _rows: list[tuple[_CutRequest, int, slice]]
    """Request, position of the first row, and rows of the batch."""

    def see(self, layer_index: int, q_THA: torch.Tensor, variant: AttentionVariant) -> None:
        """Set aside the queries of a layer that is to be cut."""
        for known, first, rows in self._rows:
            queries = known.queries.setdefault(layer_index, LastQueries(variant))
            queries.pieces[first] = q_THA[rows].clone()


def _cut(known: _CutRequest, table: Sequence[int], pool: KvPool) -> None:
    """Choose in all layers, then move: a step may be computed again while nothing has moved."""
    chosen_KN, slots_P = dict[int, torch.Tensor](), None
    for index, queries in known.queries.items():
        layer, q_RHA = pool.layers[index], queries.joined()
        if slots_P is None:
            slots_P = _slots(table, known.cut.prompt_tokens, q_RHA.device)
        k_PKA = _of(layer.keys, slots_P).numbers(q_RHA.dtype)
        scores_KP = key_scores(q_RHA, k_PKA, queries.variant)
        chosen_KN[index] = slots_P[chosen_tokens(scores_KP, known.cut.kept_tokens)]
    known.is_done = True
    known.queries.clear()
    for index, from_KN in chosen_KN.items():
        own = table[known.cut.whole_blocks :]
        _move(pool.layers[index], from_KN, _slots(own, known.cut.kept_tokens, from_KN.device))


def _move(layer: LayerKv, from_KN: torch.Tensor, to_N: torch.Tensor) -> None:
    for rows in (layer.keys, layer.values):
        rows.move(from_KN, to_N)


def _of(rows: KvRows, slots_P: torch.Tensor) -> KvRows:
    scales = None if rows.scales_SK is None else rows.scales_SK[slots_P]
    return KvRows(rows.rows_SKA[slots_P], scales)


def _slots(table: Sequence[int], tokens: int, device: torch.device) -> torch.Tensor:
    """Slots of the first tokens in these blocks."""
    blocks_B = torch.tensor(table, dtype=torch.long, device=device)
    offsets = torch.arange(BLOCK_TOKENS, device=device)
    return (blocks_B[:, None] * BLOCK_TOKENS + offsets).flatten()[:tokens]
