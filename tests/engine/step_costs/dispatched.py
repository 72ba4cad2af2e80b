"""What a step asks of its device, seen where torch hands operations to it."""

import traceback
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WITHOUT_KERNEL = frozenset(
    {
        "_unsafe_view",
        "alias",
        "detach",
        "detach_",
        "dropout",
        "empty",
        "empty_like",
        "empty_strided",
        "lift_fresh",
        "new_empty",
        "new_empty_strided",
    }
)
"""Operations that launch nothing, beside views; nobody trains, so nothing is dropped out."""

FUSED = frozenset({"dropout", "rms_norm", "scaled_dot_product_attention"})
"""Operations that torch could put together of others, but that are one where it matters."""


class Watching(TorchDispatchMode):
    """Dispatch mode that sees what operations are put together of, rather than their shells."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name.partition("::")[2]
        if name not in FUSED:
            with self:
                out = function.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return self.seen(name, function, args, kwargs)

    def seen(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        """The operation's result; one that stands on its own."""
        raise NotImplementedError


class OperationCount(Watching):
    """Count of operations that a GPU would be given to compute, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = Counter[str]()

    @property
    def total(self) -> int:
        return self.by_name.total()

    def seen(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        if not _is_view(function) and name not in WITHOUT_KERNEL:
            self.by_name[name] += 1
        return function(*args, **kwargs)


def _is_view(function: Any) -> bool:
    returns = function._schema.returns
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


class HostReads(Watching):
    """The places at which numbers of tensors on the meta device are read; all are read as zero.

    There tensors have shapes and no numbers, so a stage computes as on a GPU and nothing comes of
    it. What needs a number for the shape of its result fails, as it should.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.sent: list[str] = []
        """Places at which numbers of the host are sent to the device."""

    def seen(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        if name == "_to_copy" and args[0].is_cpu and kwargs.get("device") == torch.device("meta"):
            self.sent.append(_place())
        from_meta = bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_meta
        if from_meta and name == "_local_scalar_dense":
            self.places.append(_place())
            return torch.zeros((), dtype=args[0].dtype).item()
        if from_meta and name == "_to_copy" and kwargs.get("device") == torch.device("cpu"):
            self.places.append(_place())
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return function(*args, **kwargs)


def _place() -> str:
    """The innermost line outside torch that is being run."""
    frames = [
        frame
        for frame in traceback.extract_stack()
        if "/torch/" not in frame.filename and frame.filename != __file__
    ]
    return f"{frames[-1].filename.rpartition('site-packages/')[2]}: {frames[-1].line}"
