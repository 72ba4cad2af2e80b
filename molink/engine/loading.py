"""From a model's name to a stage that is ready to compute.

A stage first proves, on a miniature of the model, that its architecture can be cut at all
(`self_test`), because a wrong answer is only seen in numbers; then it loads its weights and no
others (`weights`), and makes room for its KV.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.description import ModelDescription, describe, read_declared
from molink.checkpoint.kv_format import KvDtype
from molink.checkpoint.layers_together import check_cuts
from molink.checkpoint.quantized.too_large import FOR_STAGE, stage_refusal
from molink.checkpoint.stage_size import KV_TOKENS_MIN, stage_size_of
from molink.engine.device.card import card_of
from molink.engine.device.devices import (
    choose_device,
    choose_dtype,
    free_memory_bytes,
    return_freed_memory,
)
from molink.engine.drafting.assistant import TailDrafter
from molink.engine.drafting.assistant_loading import load_assistant
from molink.engine.drafting.packaging import load_tail_layer
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.model.weights import Progress, StagePart, load_model, load_model_config
from molink.engine.sampling.grammar import Grammars
from molink.engine.self_test.self_test import check_architecture, trouble_with_card_rewriting
from molink.engine.step.apart_stage import ApartStage
from molink.engine.step.graphs.recording import recorder_on
from molink.engine.step.number_range import FP16_SAFE, largest_number
from molink.engine.step.stage import StageExecutor
from molink.engine_protocol.computing import Computing
from molink.errors import NoRoomError, UnsupportedModelError, UserError
from molink.stage_protocol.messages import HOST, LoadStage, StageWork

log = logging.getLogger(__name__)

OPENED, READ = 0.4, 0.7
"""Progress when files have been fetched and opened, and when all weights have been read; then they
are rearranged."""

COUNTED_WITHIN = 0.02
"""Share by which what is counted by files may pass what is lent, as an agent allows."""

READ_BYTES = 64 * 2**20
"""Bytes between two reports: a second of an old disk."""

PAGE_BYTES = 4096
"""Page size of the memory maps that files are read through; where pages are larger, each is read
all the same."""


def load_stage(
    model: str,
    work: StageWork,
    progress: Progress = lambda fraction: None,
    *,
    stages_here: int = 1,
    memory_bytes: int | None = None,
    self_test: bool = True,
    tokenizer_of: Callable[[ModelDescription], Any] = lambda description: None,
    assistant: str | None = None,
) -> StageExecutor:
    """Load the layers of a model directory or hub id.

    `stages_here` share this PC's memory, and this one takes at most `memory_bytes` of it;
    `self_test` proves first, on a tiny model of the same architecture, that stages compute what the
    whole does; the tail follows grammars with the tokenizer of `tokenizer_of`, if there is one, and
    drafts with the checkpoint `assistant` in place of a layer of its own, where one is named.
    Raises UserError (a subclass of it; NoRoomError where memory is short) with one sentence.
    """
    checkpoint = open_checkpoint(model)
    description = describe(checkpoint)
    part = StagePart(range(*work.layers), description.layers, work.drafts)
    check_cuts(description.name, description.layers, description.together, [work.layers])
    device = choose_device(work.device)
    dtype = choose_dtype(work.dtype, device, description.dtype)
    config = load_model_config(checkpoint)
    if self_test:
        check_architecture(config, description)
    tokenizer = tokenizer_of(description) if part.is_tail else None
    grammars = None if tokenizer is None else Grammars(tokenizer, description, device)
    is_on_card = card_of(device) is not None
    trouble = trouble_with_card_rewriting(config, description) if is_on_card else None
    source = _Source(checkpoint, config, description, part, work, device, trouble, assistant)
    load = partial(source.stage, grammars, progress, (stages_here, work.kv_dtype, memory_bytes))
    is_narrowed = work.dtype == "auto" and description.dtype != "float16"
    try:
        stage = _load_in_range(load, dtype) if is_narrowed else load(dtype)
    except torch.OutOfMemoryError:
        raise NoRoomError(_no_room(work.layers, device)) from None
    return_freed_memory()
    progress(1.0)
    return stage


def load_apart(
    load: LoadStage,
    computing: Computing,
    progress: Progress,
    *,
    memory_bytes: int | None = None,
    tokenizer_of: Callable[[ModelDescription], Any] = lambda description: None,
) -> StageExecutor:
    """Have another process load a stage's weights, and make room for its KV in this one, on the
    `attention_device`. Raises UserError or StageError with one sentence."""
    work = load.work
    if work.drafts:
        raise UnsupportedModelError(
            "a layer that drafts keeps KV beside its weights: --attention-device goes with "
            "--drafter none, copy or a small model"
        )
    if choose_device(work.device).type != "cpu":
        raise UserError("--attention-device: a card's memory has no forks, name --device cpu")
    description = describe(open_checkpoint(load.model))
    weights = computing.load(load, _part_of(progress, 0.0, READ))
    part, device = StagePart(range(*work.layers), description.layers), _kv_device(load)
    tokenizer = tokenizer_of(description) if part.is_tail else None
    grammars = None if tokenizer is None else Grammars(tokenizer, description, device)
    stage = ApartStage(
        None,
        part,
        description,
        device,
        dtype=getattr(torch, weights.dtype),
        grammars=grammars,
        card=card_of(device),
        computing=computing,
        weights=weights,
    )
    stage.prepare(
        work.kv_tokens,
        _part_of(progress, READ, 1.0),
        stages_here=load.stages_here,
        kv_dtype=work.kv_dtype,
        memory_bytes=memory_bytes,
    )
    progress(1.0)
    return stage


def _kv_device(load: LoadStage) -> torch.device:
    return choose_device("cpu" if load.attention_device == HOST else load.attention_device)


@dataclass(frozen=True, slots=True)
class _Source:
    """Sources that a stage is loaded from, whatever its numbers' format."""

    checkpoint: Checkpoint
    config: Any
    description: ModelDescription
    part: StagePart
    work: StageWork
    device: torch.device
    trouble: str | None
    """Why a card's fused kernels are not used; None: they may be."""
    assistant: str | None = None
    """Folder of the checkpoint that drafts on the tail; None: a layer of its own does."""

    def stage(
        self,
        grammars: Grammars | None,
        progress: Progress,
        room: tuple[int, KvDtype, int | None],
        dtype: torch.dtype,
    ) -> StageExecutor:
        """The stage in `dtype`; `room`: how many share this PC, how KV is kept, what is lent."""
        device = self.device
        _check_room(self.checkpoint, self.work, device, dtype, room[2])
        read = _part_of(progress, 0.0, OPENED)
        weights = load_model(self.checkpoint, self.config, self.part, dtype, read)
        read_onto(weights, device, _part_of(progress, OPENED, READ))
        drafter = self._drafter(weights, dtype)
        attention = AttentionChoice.on(device)
        if self.trouble is not None:
            attention.leave_unfused(self.trouble)
        stage = StageExecutor(
            weights,
            self.part,
            self.description,
            device,
            dtype,
            grammars,
            attention,
            card=card_of(device),
            recorder=None if drafter else recorder_on(device),
            drafter=drafter,
        )
        del weights, drafter
        stage.prepare(self.work.kv_tokens, _part_of(progress, READ, 1.0), *room)
        return stage

    def _drafter(self, weights: Any, dtype: torch.dtype) -> TailDrafter | None:
        """What drafts on the tail: the layer of the checkpoint, or an assistant; None where none
        does, or there is none that can."""
        if not (self.part.is_tail and self.part.drafts):
            return None
        found: TailDrafter | None
        if self.assistant is not None:
            found = load_assistant(self.assistant, self.checkpoint, self.part, weights, dtype)
        else:
            found = load_tail_layer(self.checkpoint, self.config, weights, dtype)
        if found is not None:
            read_onto(found.model, self.device)
        return found


def _load_in_range(
    load: Callable[[torch.dtype], StageExecutor], dtype: torch.dtype
) -> StageExecutor:
    """The stage in `dtype`; in fp32 where that is fp16 and its numbers do not keep within."""
    stage = load(dtype)
    if dtype is not torch.float16 or (largest := largest_number(stage)) <= FP16_SAFE:
        return stage
    log.warning(
        "computing in fp32, which takes twice the memory: of one prompt numbers reach %.3g, and "
        "this device's fp16 ends at 65,504",
        largest,
    )
    card, stage = stage.card, None  # type: ignore[assignment]  # Both would not fit.
    return_freed_memory()
    if card is not None:
        card.return_freed()
    return load(torch.float32)


def _no_room(layers: tuple[int, int], device: torch.device) -> str:
    return (
        f"layers {layers[0]} to {layers[1] - 1} have no room on {device}: give it fewer layers "
        "(more nodes), or close other programs on it"
    )


def _check_room(
    checkpoint: Checkpoint,
    work: StageWork,
    device: torch.device,
    dtype: torch.dtype,
    memory_bytes: int | None,
) -> None:
    """Refuse a stage that cannot fit, before anything large is allocated. What was lent is counted
    on its own where it is a PC's memory: that may be taken for a moment by a stage which ends."""
    try:
        size = stage_size_of(checkpoint, work.layers, work.drafts)
    except UserError:  # Of a config in words of its own no size is known; files are read below.
        return
    if size is None:  # They are still to be fetched.
        return
    card = card_of(device)
    free_bytes = free_memory_bytes() if card is None else card.free_bytes
    if memory_bytes is not None:
        lent_bytes = int(memory_bytes * (1 + COUNTED_WITHIN))
        free_bytes = lent_bytes if card is None else min(free_bytes, lent_bytes)
    kv_tokens = work.kv_tokens or KV_TOKENS_MIN
    refused = stage_refusal(
        f"{checkpoint.name}, layers {work.layers[0]} to {work.layers[1] - 1},",
        size.held_bytes(dtype.itemsize, kv_tokens, work.kv_dtype),
        free_bytes,
        f"on {device}",
        kv_tokens,
        read_declared(checkpoint),
        FOR_STAGE,
    )
    if refused:
        raise NoRoomError(refused)


def read_onto(
    model: nn.Module, device: torch.device, progress: Progress = lambda fraction: None
) -> None:
    """Read all weights from their memory maps, and move them to a device. The first step would read
    them too, which takes minutes from an old disk, and nobody would see that it goes on."""
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


def _part_of(progress: Progress, start: float, stop: float) -> Progress:
    """Progress of one part of the whole."""
    return lambda done: progress(start + (stop - start) * done)
