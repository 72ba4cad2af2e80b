"""From a model's name to a stage that is ready to compute.

A stage first proves, on a miniature of the model, that its architecture can be cut at all
(`self_test`), because a wrong answer is only seen in numbers; then it loads its weights and no
others (`weights`), and makes room for its KV.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import ModelDescription, describe
from molink.executor.architecture.self_test import check_architecture
from molink.executor.devices import choose_device, choose_dtype, return_freed_memory
from molink.executor.grammar import Grammars
from molink.executor.quantized.linear import QuantizedLinear
from molink.executor.stage import StageExecutor
from molink.executor.weights import Progress, StagePart, load_model, load_model_config
from molink.stage_protocol.messages import StageWork

__all__ = ["load_stage", "read_onto"]

OPENED, READ = 0.4, 0.7
"""Where the progress bar is when files have been fetched and opened, and when all weights have been
read; then they are rearranged."""

READ_BYTES = 64 * 2**20
"""Between two reports: a second of an old disk."""

PAGE_BYTES = 4096
"""Of the memory maps that files are read through; where pages are larger, each is read all the
same."""


def load_stage(
    model: str,
    work: StageWork,
    progress: Progress = lambda fraction: None,
    *,
    stages_here: int = 1,
    memory_bytes: int | None = None,
    self_test: bool = True,
    tokenizer_of: Callable[[ModelDescription], Any] = lambda description: None,
) -> StageExecutor:
    """Load the layers of a model directory or hub id.

    `stages_here` share this PC's memory, and this one takes at most `memory_bytes` of it;
    `self_test` proves first, on a tiny model of the same architecture, that stages compute what the
    whole does; the tail follows grammars with the tokenizer of `tokenizer_of`, if there is one.
    Raises UserError (a subclass of it) with one sentence.
    """
    checkpoint = open_checkpoint(model)
    description = describe(checkpoint)
    part = StagePart(range(*work.layers), description.layers)
    device = choose_device(work.device)
    dtype = choose_dtype(work.dtype, device, description.dtype)
    config = load_model_config(checkpoint)
    if self_test:
        check_architecture(config, description)
    weights = load_model(checkpoint, config, part, dtype, _within(progress, 0.0, OPENED))
    read_onto(weights, device, _within(progress, OPENED, READ))
    tokenizer = tokenizer_of(description) if part.is_tail else None
    grammars = None if tokenizer is None else Grammars(tokenizer, description, device)
    stage = StageExecutor(weights, part, description, device, dtype, grammars)
    del weights
    room = (stages_here, work.kv_dtype, memory_bytes)
    stage.prepare(work.kv_tokens, _within(progress, READ, 1.0), *room)
    return_freed_memory()
    progress(1.0)
    return stage


def read_onto(
    model: nn.Module, device: torch.device, progress: Progress = lambda fraction: None
) -> None:
    """Read all weights from their memory maps, and move them to a device. The first step would
    read them too, which takes minutes from an old disk, and nobody would see that it goes on."""
    total = sum(tensor.nbytes for tensor in model.parameters()) or 1
    done = 0
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            module.move(device)
        if next(module.children(), None) is not None:
            continue
        for tensor in module.parameters():
            for size in _read(tensor.detach()):
                done += size
                progress(min(1.0, done / total))  # What two modules share is read twice.
        module.to(device)
    model.to(device)


def _read(tensor: torch.Tensor) -> Iterator[int]:
    """Touch every page of a tensor; yields the bytes of each piece."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        yield tensor.nbytes
        return
    data = tensor.view(-1).view(torch.uint8)
    for start in range(0, len(data), READ_BYTES):
        piece = data[start : start + READ_BYTES]
        piece[::PAGE_BYTES].max()
        yield len(piece)


def _within(progress: Progress, start: float, stop: float) -> Progress:
    """Progress of one part of the whole."""
    return lambda done: progress(start + (stop - start) * done)
