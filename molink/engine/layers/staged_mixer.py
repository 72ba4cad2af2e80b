"""Runs a mixer of the library over the ragged rows of a step, request by request.

A mixer (gated delta rule, Mamba, short convolution) reads and writes its state through the
library's cache: it asks for the state of a sequence and hands back the next one. `StagedMixer`
stands where a mixer stood, cuts the step's rows into spans, and runs the mixer's own forward for
each with a cache that holds the request's slot and nothing else. No architecture is named.

On a GPU the decode rows of all requests are one call [B, 1, D]. On a CPU they are not: from four
rows on, the library's temporaries of a batch leave the caches, and 16 rows together take twice as
long as one after the other. What does not depend on the state, the projections, is computed once
for all rows of the step in either case (`projections`).

What a mixer is given for rows of drafts (`memory.recurrent_rows`) is kept, and stands behind the
next step's own rows where they came true. All of them are computed alike, projections included, and
what comes out of the rows behind is dropped.

Mamba-1's scan starts from nothing whatever the cache holds, without any error; spans after the
first go through such a mixer token by token, which is exact and slow.

Shapes: T rows of the step, B sequences in a call, N rows of each, D hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from molink.engine.memory.recurrent_rows import (
    MixerCall,
    RecurrentSpan,
    lagging_rows,
    mixer_calls,
)
from molink.engine.memory.state_pool import LaggingRows, StatePool, narrowed

RowsOf = Callable[[torch.Tensor], torch.Tensor]
"""Makes of a [1, T, ...] tensor one of other rows."""

CHUNK_MAX = 64
"""Rows that a scan works on at once. The library pads spans to a whole number of chunks, of 256
rows in some models: a span of 16 rows would cost 256."""


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
    own_rows: int = field(init=False)
    """Rows of the step's spans."""
    rows: int = field(init=False)
    """T: how many rows the step has, with those that it computes again."""
    lagging: LaggingRows | None = field(init=False)
    """Its rows of drafts; None: it has none."""
    _calls: dict[bool, list[MixerCall]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own_rows = sum(span.tokens for span in self.spans)
        self.rows = self.own_rows + sum(len(span.again) for span in self.spans)
        self.lagging = lagging_rows(self.spans, self.decode_index)

    @classmethod
    def of_decodes(cls, slots_R: torch.Tensor, pool: StatePool) -> "RecurrentStep":
        """Step of one row for each of R requests, which is told by tensors alone."""
        rows = len(slots_R)
        spans = [RecurrentSpan(row, 1, 0, True) for row in range(rows)]
        calls = [MixerCall(torch.arange(rows, device=slots_R.device), slots_R, True)]
        return cls(spans, pool, slots_R, rows, _calls={True: calls, False: calls})

    def calls(self, continues: bool) -> list[MixerCall]:
        """The calls that compute all rows, for a mixer that `continues` in mid-prompt or not."""
        if continues not in self._calls:
            given = self.spans, self.decode_index, self.decode_rows_max
            self._calls[continues] = mixer_calls(*given, continues=continues)
        return self._calls[continues]


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
        if step.lagging is not None or self._layer not in step.pool.inputs:
            args, kwargs = self._carried(step, (args, kwargs))
        if self.projections is None:
            return _joined(self._outputs(step, args, kwargs), step)
        with self.projections.of(args, kwargs) as whole:
            outputs = self._outputs(step, args, kwargs, whole.hand_out)
        return whole.finish(_joined(outputs, step))

    def _carried(self, step: RecurrentStep, given: Any) -> Any:
        """What the mixer is `given`, with the rows behind it that are computed again."""
        numbers = count()

        def carried(rows_1T: torch.Tensor) -> torch.Tensor:
            return step.pool.carry(self._layer, next(numbers), rows_1T, step.lagging)

        return _with_rows(given, step.own_rows, carried)

    def _outputs(
        self,
        step: RecurrentStep,
        args: Any,
        kwargs: Any,
        hand_out: Callable[[RowsOf], None] | None = None,
    ) -> list[tuple[MixerCall, Any]]:
        """What each call returns. Drafts leave the pool as it is."""
        outputs, states = list[tuple[MixerCall, Any]](), None
        for call in step.calls(self._kind.continues):
            if hand_out is not None:
                hand_out(call.of)
            states = self._states(step, call, states)
            cut_args, cut_kwargs = _with_rows((args, kwargs), step.rows, call.of)
            self._fit_chunk(call)
            cache = {self._kind.cache_name: MixerCache(states)}
            outputs.append((call, self.mixer(*cut_args, **(cut_kwargs | cache))))
            if call.depth is None:
                step.pool.store(self._layer, states, call.slots)
        return outputs

    def _states(self, step: RecurrentStep, call: MixerCall, before: Any) -> Any:
        """The library's cache layer of a call; `before`: that of the call before."""
        if call.depth:
            return narrowed(before, len(call.slots))
        if call.has_state:
            return step.pool.load(self._layer, self._kind.states_count, call.slots)
        return LinearAttentionLayer(number_of_states=self._kind.states_count)

    def _fit_chunk(self, call: MixerCall) -> None:
        if hasattr(self.mixer, "chunk_size") and isinstance(call.rows, slice):
            self.mixer.chunk_size = min(self._chunk_size, call.rows.stop - call.rows.start)


def _with_rows(value: Any, rows: int, change: RowsOf) -> Any:
    """`value` with every [1, T, ...] tensor in it, of so many `rows`, changed."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.dim() > 1 and value.shape[:2] == (1, rows) else value
    if isinstance(value, dict):
        return {key: _with_rows(one, rows, change) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_with_rows(one, rows, change) for one in value)
    return value


def _joined(outputs: Sequence[tuple[MixerCall, Any]], step: RecurrentStep) -> Any:
    """The calls' outputs, [B, N, ...] tensors or tuples of them, as [1, T, ...] in row order,
    without the rows that were computed again."""
    first = outputs[0][1]
    if isinstance(first, tuple):
        parts = range(len(first))
        return tuple(_joined([(call, out[part]) for call, out in outputs], step) for part in parts)
    if first is None or (len(outputs) == 1 and isinstance(outputs[0][0].rows, slice)):
        return first
    whole = first.new_empty(1, step.rows, *first.shape[2:])
    for call, output in outputs:
        whole[0, call.rows] = output.flatten(0, 1)
    return whole[:, : step.own_rows]
