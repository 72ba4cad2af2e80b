"""Finds the mixers of a model: the modules that ask a cache for states.

The model runs once with a cache without memory, which notes who asks it. A list of classes was
rejected: every family brings its own, and the cache's methods are the same for all.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, LinearAttentionLayer

from molink.engine.layers.staged_mixer import MixerCache, MixerKind, StagedMixer
from molink.engine.proof import hooks, with_random_rows

TRIAL_TOKENS = 3
"""Rows of the trial: with one alone a mixer would take its path for decoding."""


class ProbeCache(Cache):  # type: ignore[misc]
    """Cache without memory that notes which module asks it for a state, and how it was called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(layers=[])
        self._model = model
        self._running: list[tuple[Any, Any, Any]] = []
        self.found: dict[Any, MixerKind] = {}
        self.calls: dict[Any, tuple[Any, Any]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Know which module runs, inside the block."""

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            self._running.append((module, args, kwargs))

        def leave(module: Any, args: Any, output: Any) -> None:
            self._running.pop()

        modules = list(self._model.modules())
        before = [one.register_forward_pre_hook(enter, with_kwargs=True) for one in modules]
        behind = [one.register_forward_hook(leave, always_call=True) for one in modules]
        with hooks(before + behind):
            yield

    def _note(self, state_idx: int) -> None:
        module, args, kwargs = self._running[-1]
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        given = bound | bound.get("kwargs", {})
        name = next(key for key, value in given.items() if value is self)
        known = self.found.get(module)
        count = max(state_idx + 1, known.states_count if known else 1)
        self.found[module] = MixerKind(name, count)
        self.calls[module] = (args, kwargs)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Note who asks; there is no state yet, so None."""
        self._note(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Note who asks; there is no state yet, so None."""
        self._note(state_idx)

    def update_conv_state(
        self, conv_states: Any, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Any:
        """Note who asks, and hand back what was given: nothing stood before it."""
        self._note(state_idx)
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Any, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Any:
        """Note who asks, and hand back what was given: nothing stood before it."""
        self._note(state_idx)
        return recurrent_states

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
        """The keys and values that were given: attention keeps its own."""
        return key_states, value_states

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """0: no token has been cached."""
        return 0

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        """0: no token has been cached."""
        return 0

    def get_mask_sizes(self, query_length: int, *_: Any) -> tuple[int, int]:
        """Length and offset of the keys: those of the queries alone."""
        return query_length, 0

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """False: every trial begins without state."""
        return False

    def is_recording_past(self, *_: Any, **__: Any) -> bool:
        """False: nothing is kept to roll back to."""
        return False


def stage_mixers(model: Any, trial: Callable[[Cache], None]) -> list[StagedMixer]:
    """Put a `StagedMixer` in the place of every mixer of `model`; returns them.

    `trial` runs the model with a cache over `TRIAL_TOKENS` rows of one request. A model that runs
    with no cache but its own has no mixers here: without one it is right as it is, or the
    self-test refuses it.
    """
    probe = ProbeCache(model)
    with probe.watching():
        try:
            trial(probe)
        except Exception:
            return []
    names = {module: name for name, module in model.named_modules()}
    staged = []
    for mixer, kind in probe.found.items():
        continues = _reads_state(mixer, kind, *probe.calls[mixer])
        staged.append(StagedMixer(mixer, MixerKind(kind.cache_name, kind.states_count, continues)))
        parent, _, leaf = names[mixer].rpartition(".")
        setattr(model.get_submodule(parent), leaf, staged[-1])
    return staged


def _reads_state(mixer: Any, kind: MixerKind, args: Any, kwargs: Any) -> bool:
    """Whether a span of several rows reads the recurrent state at all: told by another state."""
    args, kwargs = with_random_rows(args), with_random_rows(kwargs)

    def run(layer: Any) -> Any:
        with torch.inference_mode():
            output = mixer(*args, **(kwargs | {kind.cache_name: MixerCache(layer)}))
        return output[0] if isinstance(output, tuple) else output

    layer = LinearAttentionLayer(number_of_states=kind.states_count)
    run(layer)
    other = copy.deepcopy(layer)
    states = [state for state in other.recurrent_states.values() if state is not None]
    with torch.inference_mode():
        for state in states:
            state.mul_(3).add_(1)
    return not states or not torch.equal(run(layer), run(other))
