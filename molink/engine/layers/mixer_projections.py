"""A mixer's projections, computed once for all rows of a step.

Only the recurrence itself depends on a request's state. The linears before and after it read the
same weights for every row: computed span by span, 16 decode rows would read them 16 times.

They are found in a trial, not by their names: what is handed the mixer's own input stands before
the recurrence, what returns the mixer's own result stands behind it. Both are hoisted only if they
treat every row alone, which a convolution does not; that is tried with random rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from molink.engine.layers.staged_mixer import StagedMixer
from molink.engine.proof import alike, hooks, probe_rows


class Before(nn.Module):
    """Projection of the mixer's input: hands out rows of what was computed for all."""

    def __init__(self, projection: Any) -> None:
        super().__init__()
        self.projection = projection
        self.rows: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows at hand, or the projection of `x` where none are."""
        return self.projection(x) if self.rows is None else self.rows


class Behind(nn.Module):
    """Projection whose result is the mixer's: left to the end, for all rows."""

    def __init__(self, projection: Any) -> None:
        super().__init__()
        self.projection = projection
        self.is_put_off = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input while the projection is put off."""
        return x if self.is_put_off else self.projection(x)


@dataclass(slots=True)
class Projections:
    """Projections of one mixer."""

    key: int | str
    """Place or name of the argument that is projected."""
    before: list[Before]
    behind: Behind | None
    _whole: list[torch.Tensor] = field(default_factory=list)

    @contextmanager
    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator["Projections"]:
        """Project all rows [1, T, D] of a step; inside the block the mixer is handed parts."""
        hidden = args[self.key] if isinstance(self.key, int) else kwargs[self.key]
        self._whole = [one.projection(hidden) for one in self.before]
        if self.behind is not None:
            self.behind.is_put_off = True
        try:
            yield self
        finally:
            self._whole = []
            for one in self.before:
                one.rows = None
            if self.behind is not None:
                self.behind.is_put_off = False

    def hand_out(self, rows_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Hand the next call its rows of what was projected."""
        for one, whole in zip(self.before, self._whole, strict=True):
            one.rows = rows_of(whole)

    def finish(self, output: Any) -> Any:
        """The mixer's output for what its calls returned."""
        return output if self.behind is None else self.behind.projection(output)


@dataclass(slots=True)
class Trace:
    """Inputs and outputs of a mixer and its parts in a trial."""

    inputs: dict[int | str, Any] = field(default_factory=dict)
    output: Any = None
    parts: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Triples (name, input, output) of parts that take one tensor, in the order of their calls."""


def hoist(mixers: Sequence[StagedMixer], trial: Callable[[], object]) -> None:
    """Let each mixer compute its projections once per step; `trial` runs the model once."""
    traces = [Trace() for _ in mixers]
    pairs = list(zip(mixers, traces, strict=True))
    with hooks(handle for staged, trace in pairs for handle in _hooks(staged.mixer, trace)):
        trial()
    for staged, trace in pairs:
        staged.projections = _projections(staged.mixer, trace)


def _hooks(mixer: Any, trace: Trace) -> list[Any]:
    def mixer_ran(_: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        trace.inputs, trace.output = dict(enumerate(args)) | kwargs, output

    def part_ran(name: str) -> Callable[..., None]:
        def ran(_: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            if len(args) == 1 and not kwargs and isinstance(output, torch.Tensor):
                trace.parts.append((name, args[0], output))

        return ran

    parts = mixer.named_children()
    return [
        mixer.register_forward_hook(mixer_ran, with_kwargs=True),
        *(part.register_forward_hook(part_ran(name), with_kwargs=True) for name, part in parts),
    ]


def _projections(mixer: Any, trace: Trace) -> Projections | None:
    """The parts of a mixer that can be hoisted, put in place; None where there are none."""
    calls = [name for name, *_ in trace.parts]
    once = [part for part in trace.parts if calls.count(part[0]) == 1]
    key = next((k for k, value in trace.inputs.items() for part in once if value is part[1]), None)
    if key is None:
        return None
    hidden = trace.inputs[key]
    first = [name for name, x, _ in once if x is hidden and _rows_stand_alone(mixer, name, x)]
    last = [
        name
        for name, x, output in once
        if output is trace.output and x is not hidden and _rows_stand_alone(mixer, name, x)
    ]
    return Projections(
        key,
        [_put(mixer, name, Before) for name in first],
        _put(mixer, last[0], Behind) if last else None,
    )


def _put(mixer: Any, name: str, kind: Callable[[Any], Any]) -> Any:
    module = kind(getattr(mixer, name))
    setattr(mixer, name, module)
    return module


def _rows_stand_alone(mixer: Any, name: str, like: torch.Tensor) -> bool:
    """Whether a part of a mixer computes a row from that row alone."""
    part = getattr(mixer, name)
    x = probe_rows(4, like.shape[-1], like.dtype).to(like.device)[None]
    with torch.inference_mode():
        try:
            whole, alone = (
                part(x),
                torch.cat([part(row) for row in x.tensor_split(x.shape[1], 1)], 1),
            )
        except RuntimeError:
            return False
    if whole.shape[:2] != x.shape[:2] or alone.shape != whole.shape:
        return False
    return alike(alone.flatten(2), whole.flatten(2)) is None
