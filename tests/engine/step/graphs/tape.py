"""Twin of a CUDA graph on a CPU: keeps the operations of a computation, and calls them again.

What a graph bakes in, a tape bakes in: places of tensors, shapes, Python's numbers. What a card
refuses to record, since the host would have to wait for it, a tape refuses as far as torch tells:
to a CPU, lists of a tensor's numbers and copies are its own, and those are baked in.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from molink.engine.step.graphs.recording import Recording
from tests.engine.step_costs.dispatched import Watching

REFUSED = {"_local_scalar_dense": "a number", "nonzero": "a size", "_unique2": "a size"}


class Tape(Watching):
    """Operations with their tensors, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def seen(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        if name in REFUSED:
            raise RuntimeError(f"not while recording: the host reads {REFUSED[name]} ({name})")
        result = function(*args, **kwargs)
        outputs = _tensors(result)
        known = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        fresh = [i for i, t in enumerate(outputs) if t.untyped_storage().data_ptr() not in known]
        if fresh or function._schema.is_mutable:
            self.calls.append((function, args, kwargs, outputs, fresh))
        return result

    def replay(self) -> None:
        with torch.inference_mode():
            for function, args, kwargs, outputs, fresh in self.calls:
                results = _tensors(function(*args, **kwargs))
                for i in fresh:
                    outputs[i].copy_(results[i])


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class TapeRecorder:
    """Recorder of tapes, where a card's makes graphs."""

    def record(self, compute: Any) -> Recording:
        compute()
        with Tape() as tape:
            out = compute()
        return Recording(out, tape.replay)
