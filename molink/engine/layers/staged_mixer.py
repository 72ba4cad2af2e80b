"""Runs a mixer of the library over the ragged rows of a step, request by request.

A mixer (gated delta rule, Mamba, short convolution) reads and writes its state through the
library's cache: it asks for the state of a sequence and hands back the next one. `StagedMixer`
stands where a mixer stood, cuts the step's rows into spans, and runs the mixer's own forward for
each with a cache that holds the request's slot and nothing else. No architecture is named.

On a GPU the decode rows of all requests are one call [B, 1, D]. On a CPU they are not: from four
rows on, the library's temporaries of a batch leave the caches, and 16 rows together take twice as
long as one after the other. What does not depend on the state, the projections, is computed once
for all rows of the step in either case (`projections`).

Mamba-1's scan starts from nothing whatever the cache holds, without any error; spans after the
first go through such a mixer token by token, which is exact and slow.

Shapes: T rows of the step, B sequences in a call, N rows of each, D hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from molink.engine.memory.state_pool import Slots, StatePool
from molink_scheduler.batch import Batch

CHUNK_MAX = 64
"""Rows that a scan works on at once. The library pads spans to a whole number of chunks, of 256
rows in some models: a span of 16 rows would cost 256."""


@dataclass(frozen=True, slots=True)
class RecurrentSpan:
    """Rows of one request within a step."""

    row: int
    """First row of the span in the step."""
    tokens: int
    slot: int
    has_state: bool
    """Whether rows of the request have been computed before."""

    @property
    def is_decode(self) -> bool:
        """Whether it is the next row of a request that has a state."""
        return self.has_state and self.tokens == 1


def recurrent_spans(batch: Batch, states: StatePool) -> list[RecurrentSpan]:
    """The spans of a batch, each with its request's slot."""
    spans, row = [], 0
    for span in batch.spans:
        slot = states.take(span.request_id)
        spans.append(RecurrentSpan(row, span.tokens, slot, span.start > 0))
        row += span.tokens
    return spans


def decode_index(spans: Sequence[RecurrentSpan]) -> list[int]:
    """Rows and then slots of the spans that are decode rows."""
    decodes = [span for span in spans if span.is_decode]
    return [*(span.row for span in decodes), *(span.slot for span in decodes)]


@dataclass(frozen=True, slots=True)
class MixerCall:
    """Call of a mixer: B sequences of N rows each."""

    rows: slice | torch.Tensor
    """Place of the rows: of one sequence a slice, of decode rows their index [B]."""
    slots: Slots
    has_state: bool

    def of(self, value_1T: torch.Tensor) -> torch.Tensor:
        """Rows [B, N, ...] of this call in a [1, T, ...] tensor."""
        return (
            value_1T[:, self.rows] if isinstance(self.rows, slice) else value_1T[0, self.rows, None]
        )


@dataclass(slots=True)
class RecurrentStep:
    """Recurrence of one step: whose rows stand where, their states, and who called."""

    spans: Sequence[RecurrentSpan]
    pool: StatePool
    decode_index: torch.Tensor
    """Index that `decode_index` makes of the spans, on the device."""
    decode_rows_max: int
    """Decode rows that share a call."""
    before_mixer: Callable[[], None] | None = None
    """Called by every mixer before it runs: other steps may run inside, this one waits."""
    layers_called: list[int] = field(default_factory=list)
    _calls: dict[bool, list[MixerCall]] = field(default_factory=dict)

    @classmethod
    def of_decodes(cls, slots_R: torch.Tensor, pool: StatePool) -> "RecurrentStep":
        """Step of one row for each of R requests, which is told by tensors alone."""
        count = len(slots_R)
        spans = [RecurrentSpan(row, 1, 0, True) for row in range(count)]
        calls = [MixerCall(torch.arange(count, device=slots_R.device), slots_R, True)]
        return cls(spans, pool, slots_R, count, _calls={True: calls, False: calls})

    @property
    def rows(self) -> int:
        """T: how many rows the step has."""
        return sum(span.tokens for span in self.spans)

    def calls(self, continues: bool) -> list[MixerCall]:
        """The calls that compute all rows, for a mixer that `continues` in mid-prompt or not."""
        if continues not in self._calls:
            decodes = [span for span in self.spans if span.is_decode]
            others = [span for span in self.spans if not span.is_decode]
            calls = [call for span in others for call in _span_calls(span, continues)]
            self._calls[continues] = [*self._decode_calls(decodes), *calls]
        return self._calls[continues]

    def _decode_calls(self, decodes: Sequence[RecurrentSpan]) -> Iterator[MixerCall]:
        count = len(decodes)
        for first in range(0, count, self.decode_rows_max):
            end = min(first + self.decode_rows_max, count)
            if end - first == 1:
                yield from _span_calls(decodes[first], True)
                continue
            rows_R = self.decode_index[first:end]
            yield MixerCall(rows_R, self.decode_index[count + first : count + end], True)


def _span_calls(span: RecurrentSpan, continues: bool) -> Iterator[MixerCall]:
    size = span.tokens if continues or not span.has_state else 1
    for row in range(span.row, span.row + span.tokens, size):
        yield MixerCall(slice(row, row + size), (span.slot,), span.has_state)


_active: ContextVar[RecurrentStep] = ContextVar("molink_recurrent_step")


@contextmanager
def active_recurrence(step: RecurrentStep) -> Iterator[None]:
    """Let mixers called inside the block belong to `step`."""
    token = _active.set(step)
    try:
        yield
    finally:
        _active.reset(token)


@dataclass(slots=True)
class MixerCache:
    """Stand-in that a mixer sees for the library's cache: one layer, whatever number it names."""

    layer: Any

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """The last columns before these rows; None before the first."""
        return self.layer.conv_states[state_idx] if self.has_previous_state(0, state_idx) else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """The state before these rows; None before the first."""
        has_state = self.has_previous_state(0, state_idx)
        return self.layer.recurrent_states[state_idx] if has_state else None

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **others: Any
    ) -> Any:
        """Keep the last columns; returns the old ones and these."""
        return self.layer.update_conv_state(conv_states, state_idx, **others)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **others: Any
    ) -> Any:
        """Keep the state after these rows."""
        return self.layer.update_recurrent_state(recurrent_states, state_idx, **others)

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether rows have been computed before."""
        return bool(self.layer.has_previous_state[state_idx or 0])

    def is_recording_past(self, layer_idx: int) -> bool:
        """Whether states are kept to go back to: never."""
        return False


@dataclass(frozen=True, slots=True)
class MixerKind:
    """Findings of a trial of a mixer."""

    cache_name: str
    """The argument by which it is handed the cache."""
    states_count: int
    continues: bool = True
    """Whether a span of several rows goes on from the request's state."""


class StagedMixer(nn.Module):
    """Mixer that runs span by span, each with its request's state."""

    def __init__(self, mixer: Any, kind: MixerKind) -> None:
        super().__init__()
        self.mixer = mixer
        self.projections: Any = None
        """Projections computed for all rows at once (`projections.Projections`), once found."""
        self._kind, self._layer = kind, mixer.layer_idx
        self._chunk_size = min(getattr(mixer, "chunk_size", CHUNK_MAX), CHUNK_MAX)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The mixer's output for [1, T, D] rows of several requests, in row order."""
        step = _active.get()
        if step.before_mixer is not None:
            step.before_mixer()
        step.layers_called.append(self._layer)
        calls = step.calls(self._kind.continues)
        if self.projections is None:
            return _joined(
                [(call, self._run(step, call, args, kwargs)) for call in calls], step.rows
            )
        with self.projections.of(args, kwargs) as whole:
            outputs = []
            for call in calls:
                whole.hand_out(call.of)
                outputs.append((call, self._run(step, call, args, kwargs)))
        return whole.finish(_joined(outputs, step.rows))

    def _run(self, step: RecurrentStep, call: MixerCall, args: Any, kwargs: Any) -> Any:
        pool, states_count = step.pool, self._kind.states_count
        if call.has_state:
            layer = pool.load(self._layer, states_count, call.slots)
        else:
            layer = LinearAttentionLayer(number_of_states=states_count)
        args, kwargs = _rows_of((args, kwargs), step.rows, call)
        self._fit_chunk(call)
        output = self.mixer(*args, **(kwargs | {self._kind.cache_name: MixerCache(layer)}))
        pool.store(self._layer, layer, call.slots)
        return output

    def _fit_chunk(self, call: MixerCall) -> None:
        if hasattr(self.mixer, "chunk_size") and isinstance(call.rows, slice):
            self.mixer.chunk_size = min(self._chunk_size, call.rows.stop - call.rows.start)


def _rows_of(value: Any, rows: int, call: MixerCall) -> Any:
    """`value` with every [1, T, ...] tensor in it cut to the call's rows."""
    if isinstance(value, torch.Tensor):
        return call.of(value) if value.dim() > 1 and value.shape[:2] == (1, rows) else value
    if isinstance(value, dict):
        return {key: _rows_of(one, rows, call) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_rows_of(one, rows, call) for one in value)
    return value


def _joined(outputs: Sequence[tuple[MixerCall, Any]], rows: int) -> Any:
    """The calls' outputs, [B, N, ...] tensors or tuples of them, as [1, T, ...] in row order."""
    first = outputs[0][1]
    if isinstance(first, tuple):
        parts = range(len(first))
        return tuple(_joined([(call, out[part]) for call, out in outputs], rows) for part in parts)
    if first is None or (len(outputs) == 1 and isinstance(outputs[0][0].rows, slice)):
        return first
    whole = first.new_empty(1, rows, *first.shape[2:])
    for call, output in outputs:
        whole[0, call.rows] = output.flatten(0, 1)
    return whole
