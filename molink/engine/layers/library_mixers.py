"""Two habits of the library's mixers that stages must not share.

As soon as a package of kernels (fla, causal_conv1d, mamba_ssm) can be imported, the library calls
it, on a CPU too, where its Triton kernels do not run. And two families clamp the time step in their
scan but not in decoding, so that the library's own prefill and decode differ by a hundredth; other
engines do not clamp.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn


def settle_mixers(model: nn.Module) -> None:
    """Let a model's mixers compute on a CPU with torch, and the same in prefill and decode."""
    for module in list(model.modules()):
        limit = getattr(module, "time_step_limit", None)
        if limit is not None and limit[0] > 0:
            module.time_step_limit = (0.0, limit[1])  # type: ignore[assignment]
    for name in {type(module).__module__ for module in model.modules()}:
        if name.startswith("transformers.models."):
            _choose_by_device(sys.modules[name])


def _choose_by_device(modeling: Any) -> None:
    for name, function in list(vars(modeling).items()):
        torch_function: Any = getattr(function, "__wrapped__", None)
        has_two = inspect.isfunction(function) and inspect.isfunction(torch_function)
        is_own = getattr(function, "__module__", None) == modeling.__name__
        if has_two and is_own and not hasattr(function, "by_device"):
            setattr(modeling, name, _by_device(function, torch_function))


def _by_device(function: Callable[..., Any], torch_function: Callable[..., Any]) -> Any:
    """Function that is `function` for tensors on a GPU, and what it stands for on a CPU."""
    known = set(inspect.signature(torch_function).parameters)

    @wraps(torch_function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[0], torch.Tensor) and args[0].device.type != "cpu":
            return function(*args, **kwargs)
        return torch_function(*args, **{k: v for k, v in kwargs.items() if k in known})

    chosen.by_device = True  # type: ignore[attr-defined]
    return chosen
