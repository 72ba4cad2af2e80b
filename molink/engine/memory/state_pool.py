"""The states of all requests on one stage, by slot.

A recurrence keeps as much for a request of ten tokens as for one of ten thousand: one slot, which
is a row of every tensor of the pool. A slot is taken with the request's first span and given back
with its release. Nobody clears it: a request that has no state yet starts from a fresh one.

What a mixer stores (the last columns of a convolution, the matrices of a recurrence) is known when
it has stored it once; the tensors are made then.

Recorded decode steps (`step.graphs`) have a slot for rows that belong to nobody. Behind it are
snapshots: copies for the prefix cache, which the head numbers and another request begins with.

States lag behind drafts (`memory.recurrent_rows`): beside its slot a request has places for what
each mixer is given of them.

Shapes: S slots, B sequences of a call, T rows of a step, P places of drafts, of A that came true,
of K that are new.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from molink.engine.memory.kv_rows import zero_pages
from molink_scheduler.batch import DRAFTS_MAX, KeptState, Span
from molink_scheduler.kv.blocks import OutOfBlocks

Slots = Sequence[int] | torch.Tensor
"""Numbers of slots, or a tensor of them on the pool's device, so that nothing is sent there, nor
read there: however few they are, their states are gathered."""

StateKey = tuple[str, int]
"""State of a layer: "conv" or "recurrent", and its number where a layer has several."""

KINDS = ("conv", "recurrent")


@dataclass(frozen=True, slots=True)
class LaggingRows:
    """Rows of drafts in one step."""

    again_A: torch.Tensor
    """Places of drafts that came true, in the order in which they are computed again."""
    rows_K: torch.Tensor
    """Rows of the step that are drafts."""
    places_K: torch.Tensor
    """Places where they are kept."""


@dataclass(slots=True)
class StatePool:
    """Pool of one stage's states: for each layer and state a tensor [S, ...]."""

    slots: int
    padding: int = 0
    """Slots behind these that are given to nobody."""
    snapshots: int = 0
    """Slots behind all others, for copies."""
    layers: dict[int, dict[StateKey, torch.Tensor]] = field(default_factory=dict)
    inputs: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    """Tensors [P, ...] of what each layer's mixer is given of drafts, by number."""
    _known_end: dict[int, int] = field(default_factory=dict)
    """Position to which the last span of a request was known, if it ended in drafts."""
    _slot_of: dict[int, int] = field(default_factory=dict)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.slots - 1, -1, -1))

    @property
    def request_bytes(self) -> int:
        """Bytes of one request's states, and of its places, in all layers seen so far."""
        states = [tensor for layer in self.layers.values() for tensor in layer.values()]
        places = [tensor for layer in self.inputs.values() for tensor in layer.values()]
        return sum(map(_row_bytes, states)) + DRAFTS_MAX * sum(map(_row_bytes, places))

    @property
    def slots_total(self) -> int:
        """Slots of all kinds."""
        return self.slots + self.padding + self.snapshots

    def take(self, request_id: int) -> int:
        """The request's slot; a new request takes a free one.

        Raises OutOfBlocks when none is free; the head admits so that this does not happen.
        """
        if request_id not in self._slot_of:
            if not self._free:
                raise OutOfBlocks(f"request {request_id} needs a state slot, none is free")
            self._slot_of[request_id] = self._free.pop()
        return self._slot_of[request_id]

    def release(self, request_id: int) -> None:
        """Give the request's slot back; a request that holds none is fine."""
        self._known_end.pop(request_id, None)
        if request_id in self._slot_of:
            self._free.append(self._slot_of.pop(request_id))

    def lags(self, spans: Iterable[Span]) -> bool:
        """Whether a step of these spans has to do with drafts, of its own or of the step before."""
        return bool(self.layers) and any(
            span.drafts or span.request_id in self._known_end for span in spans
        )

    def passed(self, span: Span) -> int:
        """Let a request's states be those behind the known tokens of its next span. How many drafts
        of the one before came true, which they have yet to take in."""
        known_end = self._known_end.pop(span.request_id, span.start)
        if span.drafts:
            self._known_end[span.request_id] = span.known_end
        assert 0 <= span.start - known_end <= DRAFTS_MAX, "a span begins behind what was known"
        return span.start - known_end

    def carry(
        self, layer: int, number: int, given_1T: torch.Tensor, lagging: LaggingRows | None
    ) -> torch.Tensor:
        """What a mixer is given, with the drafts behind it that came true; those of this step are
        kept."""
        places = self.inputs.setdefault(layer, {})
        if number not in places:
            places[number] = _zeros(self.slots * DRAFTS_MAX, given_1T[0])
        if lagging is None:
            return given_1T
        again = places[number][lagging.again_A]
        places[number][lagging.places_K] = given_1T[0, lagging.rows_K]
        return torch.cat([given_1T, again[None]], 1)

    def keep(self, kept: Iterable[KeptState]) -> None:
        """Copy requests' states as they are now to snapshots."""
        for one in kept if self.layers else ():
            self._copy(self._slot_of[one.request_id], self._snapshot(one.snapshot))

    def begin(self, request_id: int, snapshot: int) -> None:
        """Let a new request go on from the states of a snapshot."""
        if self.layers:
            self._copy(self._snapshot(snapshot), self.take(request_id))

    def resized(self, slots: int, padding: int = 0, snapshots: int = 0) -> "StatePool":
        """An empty pool of another size with the same layers."""
        pool = StatePool(slots, padding, snapshots)
        for index, tensors in self.layers.items():
            like = tensors.items()
            pool.layers[index] = {key: _zeros(pool.slots_total, one) for key, one in like}
        for index, given in self.inputs.items():
            pool.inputs[index] = {n: _zeros(slots * DRAFTS_MAX, one) for n, one in given.items()}
        return pool

    def _snapshot(self, number: int) -> int:
        if not 0 <= number < self.snapshots:
            raise OutOfBlocks(f"there is no room for a snapshot {number} of states")
        return self.slots + self.padding + number

    def _copy(self, source: int, target: int) -> None:
        for tensors in self.layers.values():
            for states in tensors.values():
                states[target].copy_(states[source])

    def load(self, layer: int, states_count: int, slots: Slots) -> LinearAttentionLayer:
        """The library's cache layer with these requests' states: views where it is one request,
        so that the mixer writes straight into the pool."""
        cached: Any = LinearAttentionLayer(number_of_states=states_count)
        for (kind, number), pool in self.layers.get(layer, {}).items():
            alone = _only(slots)
            state = pool[_index(slots, pool)] if alone is None else pool[alone : alone + 1]
            getattr(cached, f"{kind}_states")[number] = state
            getattr(cached, f"is_{kind}_states_initialized")[number] = True
            cached.has_previous_state[number] = True
            cached.dtype, cached.device = state.dtype, state.device
            if kind == "conv":
                cached.conv_kernel_size[number] = state.shape[-1]
        return cached

    def store(self, layer: int, cached: Any, slots: Slots) -> None:
        """Keep what a mixer left in the library's cache layer, [B, ...] of each state."""
        for kind in KINDS:
            for number, state in getattr(cached, f"{kind}_states").items():
                if state is not None:
                    self._store((kind, number), layer, state, slots)

    def _store(self, key: StateKey, layer: int, state: torch.Tensor, slots: Slots) -> None:
        tensors = self.layers.setdefault(layer, {})
        if key not in tensors:
            tensors[key] = _zeros(self.slots_total, state)
        pool, alone = tensors[key], _only(slots)
        if alone is None:
            pool[_index(slots, pool)] = state
        elif state.data_ptr() != pool[alone].data_ptr():
            pool[alone] = state[0]


def narrowed(cached: Any, count: int) -> Any:
    """The library's cache layer with the states of its first `count` sequences."""
    for states in (cached.conv_states, cached.recurrent_states):
        states.update({n: state[:count] for n, state in states.items() if state is not None})
    return cached


def _only(slots: Slots) -> int | None:
    """The slot of a call for one request, whose state is a view; None where it is gathered."""
    return None if isinstance(slots, torch.Tensor) or len(slots) > 1 else slots[0]


def _index(slots: Slots, pool: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(slots, device=pool.device)


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor[0].numel() * tensor.element_size()


def _zeros(slots: int, like: torch.Tensor) -> torch.Tensor:
    return zero_pages((slots, *like.shape[1:]), like.dtype, like.device)
