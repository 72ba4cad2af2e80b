"""Rotations of queries and keys, left to the kernel that stores keys and values.

The library's attention classes call a function of their module, `apply_rotary_pos_emb(q, k, cos,
sin)`, and hand what it returns to attention. How it pairs numbers differs between architectures,
so it is not read but tried: what it makes of random queries and keys under a trial's own angles is
compared with every kind of rotation that the kernel knows. An attention module of that kind then
calls a function in its place that puts the rotation off: attention is handed the queries and keys
as they were, and turns them as it stores them.

Where something stands between the two (a norm, a concatenation) attention is handed other tensors,
which a second trial sees; there the rotation is one launch of its own, where it stands.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.kernels.cuda.fused_math import PlainFused, Rotation, Turn
from molink.engine.proof import alike, only_reading
from molink.errors import UnsupportedModelError

PARAMETERS = ["q", "k", "cos", "sin"]
"""Parameters of a rotation, by the library's convention."""


@dataclass(slots=True)
class PutOff:
    """A rotation that attention is to compute."""

    query: torch.Tensor
    key: torch.Tensor
    turn: Turn
    choice: FusedChoice


class RotaryCall:
    """Function in place of an attention module's rotation."""

    def __init__(self, function: Callable[..., Any], choice: FusedChoice) -> None:
        self.choice = choice
        self._function = function
        self._rotation: Rotation | None = None
        self._seen: tuple[torch.Tensor, ...] | None = None
        self._is_trial, self._is_put_off = True, True
        self._pending: PutOff | None = None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Result of the library's function; or queries and keys as they are, for attention to
        turn."""
        if self._rotation is None:
            self._seen = _tables(q, k, others, named)
            return self._function(q, k, *others, **named)
        turn = Turn(self._rotation, others[0][0], others[1][0])
        if self._is_put_off:
            q, k = q.detach(), k.detach()  # Others than those before, to be known by.
            self._pending = PutOff(q, k, turn, self.choice)
            return q, k
        assert self.choice.operators is not None
        return _outer(*self.choice.operators.rotated(_inner(q), _inner(k), turn))

    def taken(self, query: torch.Tensor, key: torch.Tensor) -> PutOff | None:
        """The rotation that was put off and has to be done to these now; None: none was.

        Raises UnsupportedModelError where other queries and keys arrive than in the trial."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        if pending.query is query and pending.key is key:
            return pending
        if not self._is_trial:
            raise UnsupportedModelError("a layer changes its queries only in some steps")
        self._is_put_off = False
        return None

    def find(self) -> bool:
        """See, after a trial, which rotation it is; False where the kernels have none like it."""
        if self._seen is None:
            return False
        q, k, cos, _ = self._seen
        kind = (self._function, q.shape[1::2], k.shape[1::2], q.dtype, cos.dtype, cos.shape[2])
        plain = partial(_is_alike, self._function, PlainFused(), seen=self._seen)
        read = {str(one): one for one in _candidates(q.shape[-1], cos.shape[-1])}
        found = only_reading({name: None if plain(one) else "is off" for name, one in read.items()})
        if found is not None:
            ours = partial(
                _is_alike, self._function, self.choice.operators, read[found], self._seen
            )
            if self.choice.trusts("rotations", kind, ours):
                self._rotation = read[found]
        self._seen = None
        return self._rotation is not None

    def settle(self) -> None:
        """End a trial with the rotation put off: from now on nothing else may happen."""
        self._is_trial = False


def put_off_rotations(model: nn.Module, trial: Callable[[], object], choice: FusedChoice) -> None:
    """Let attention turn the queries and keys of a model's layers, in place; `trial` computes a
    few rows of one request."""
    if choice.operators is None:
        return
    calls = dict(_bound(model, choice))
    trial()
    for module in [module for module, call in calls.items() if not call.find()]:
        del module.__dict__["forward"], calls[module]
    for module, call in calls.items():
        module.__dict__["rotary_call"] = call
    trial()
    for call in calls.values():
        call.settle()


def _bound(model: nn.Module, choice: FusedChoice) -> Iterator[tuple[nn.Module, RotaryCall]]:
    """Attention modules, and the calls in place of their rotations."""
    for module in model.modules():
        forward: Any = type(module).forward
        if not hasattr(module, "layer_idx") or not isinstance(forward, FunctionType):
            continue
        names = [n for n in forward.__code__.co_names if _is_rotation(forward.__globals__.get(n))]
        if len(names) == 1 and "forward" not in module.__dict__:
            call = RotaryCall(forward.__globals__[names[0]], choice)
            module.__dict__["forward"] = MethodType(_with_global(forward, names[0], call), module)
            yield module, call


def _is_rotation(function: Any) -> bool:
    if not isinstance(function, FunctionType):
        return False
    return list(inspect.signature(function).parameters)[: len(PARAMETERS)] == PARAMETERS


def _with_global(function: FunctionType, name: str, value: Any) -> FunctionType:
    """Copy of a function that finds something else under a global name."""
    names = {**function.__globals__, name: value}
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _tables(
    q: torch.Tensor, k: torch.Tensor, others: tuple[Any, ...], named: Mapping[str, object]
) -> tuple[torch.Tensor, ...] | None:
    """Queries, keys and tables of a call that the kernels could stand for: one request's rows."""
    if named or len(others) != 2 or not all(isinstance(one, torch.Tensor) for one in others):
        return None
    cos, sin = others
    shapes_fit = cos.dim() == 3 and cos.shape == sin.shape and cos.shape[:2] == (1, q.shape[2])
    is_dense = cos.stride(2) == sin.stride(2) == 1 and cos.stride(1) == sin.stride(1)
    return (q, k, cos, sin) if q.dim() == k.dim() == 4 and shapes_fit and is_dense else None


def _candidates(head_size: int, width: int) -> Iterator[Rotation]:
    """Rotations that tables of this width can stand for: of each number, or of each pair."""
    sizes = {width, 2 * width}
    for size in sorted(size for size in sizes if size <= head_size and size % 2 == 0):
        yield Rotation(size, neighbours=False, step=1)
        yield Rotation(size, neighbours=True, step=1)
        if size == width:
            yield Rotation(size, neighbours=True, step=2)


def _is_alike(function: Callable[..., Any], operators: Any, rotation: Rotation, seen: Any) -> bool:
    """Whether a rotation does to random queries and keys what the library's function does."""
    q, k, cos, sin = seen
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(x.shape, generator=generator).to(x.device, x.dtype) for x in (q, k))
    with torch.inference_mode():
        wanted = function(q, k, cos, sin)
        turn = Turn(rotation, cos[0], sin[0])
        got = _outer(*operators.rotated(_inner(q), _inner(k), turn))
    return all(alike(one, other) is None for one, other in zip(got, wanted, strict=True))


def _inner(heads: torch.Tensor) -> torch.Tensor:
    """Rows [T, heads, A] of what the library keeps as [1, heads, T, A]."""
    return heads[0].transpose(0, 1)


def _outer(*heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(one.transpose(0, 1)[None] for one in heads)
