"""A ring of real stages in one process, as far as an audit sees it: what its stages report.

Spans pass from stage to stage through the codec, as over links; nothing is scheduled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.device.elements import elements_of
from molink.engine.loading import load_stage
from molink.engine.model.pruning import decoder_layers
from molink.engine.model.row_sketches import RowSketches
from molink.engine.step.stage import StageExecutor
from molink.stage.packing import Packing
from molink.stage_protocol.messages import StageWork
from molink.wire.codecs import decode
from molink_scheduler.audit import AuditedRing, AuditedStage
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams

__all__ = ["InProcessRing", "flip", "leave_out"]

SCORED = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)


@dataclass
class InProcessRing:
    """Stages of a model, cut at `cuts`."""

    number: int
    stages: Sequence[StageExecutor]
    dtype: str
    codec: str = "raw"
    kv_dtype: KvDtype = "auto"
    has_experts: bool = False
    sketches: list[RowSketches] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        self.sketches = self.sketches or [_sketches_of(stage) for stage in self.stages]

    @classmethod
    def load(
        cls,
        directory: Path,
        cuts: Sequence[int],
        number: int = 0,
        dtype: str = "float32",
        codec: str = "raw",
        kv_dtype: KvDtype = "auto",
        kv_tokens: int = 1024,
    ) -> "InProcessRing":
        """Stages on this CPU."""
        works = [
            StageWork(layers, "cpu", dtype, kv_tokens, kv_dtype=kv_dtype)
            for layers in pairwise(cuts)
        ]
        stages = [load_stage(str(directory), work, self_test=False) for work in works]
        return cls(number, stages, dtype, codec, kv_dtype)

    def audit(self, tokens: Sequence[int], span_tokens: int = 64) -> AuditedRing:
        """What the stages report of these tokens as a prompt that is cut into spans."""
        self.requests += 1
        scores: list[float] = []
        ends = [*range(span_tokens, len(tokens), span_tokens), len(tokens)]
        for start, end in pairwise([0, *ends]):
            scores += self._span(tokens, start, end)
        for stage in self.stages:
            stage.release(Release(self.requests))
        reported = [self._reported(place, stage) for place, stage in enumerate(self.stages)]
        return AuditedRing(
            self.number,
            len(tokens),
            tuple(reported),
            tuple(scores),
            self.dtype,
            self.codec,
            self.kv_dtype,
            self.has_experts,
        )

    def _span(self, tokens: Sequence[int], start: int, end: int) -> list[float]:
        admission = Admission(self.requests, len(tokens), len(tokens) + 1, SCORED, tuple(tokens))
        admissions = (admission,) if start == 0 else ()
        spans = (Span(self.requests, start, end, end == len(tokens)),)
        batch = Batch(self.requests, PREFILL, -1, spans, admissions)
        rows_TD: torch.Tensor | None = None
        for stage, sketches in zip(self.stages, self.sketches, strict=True):
            sketches.begins(batch)
            output = stage.step(batch, tokens[start:end], rows_TD)
            sketches.ended(batch, 0.0)
            rows_TD = None if output.hidden_TD is None else self._sent(output.hidden_TD)
        return [score.logprob for score in output.scores]

    def _sent(self, rows_TD: torch.Tensor) -> torch.Tensor:
        """Rows as the next stage gets them."""
        header, buffer = Packing(rows_TD.shape[1]).pack(elements_of(rows_TD), self.codec)
        raw = bytearray(decode(self.codec, header, bytes(buffer)))
        return torch.frombuffer(raw, dtype=rows_TD.dtype).view(rows_TD.shape)

    def _reported(self, place: int, stage: StageExecutor) -> AuditedStage:
        (*_, numbers), *_ = self.sketches[place].done()
        name = f"ring {self.number} stage {place}"
        layers = (stage.layers.start, stage.layers.stop)
        return AuditedStage(name, name, name, layers, numbers)


def _sketches_of(stage: StageExecutor) -> RowSketches:
    return RowSketches([(stage.model, stage.layers)], stage.hidden_size, stage.device)


def flip(stage: StageExecutor, layer: int) -> None:
    """Have a stage negate what one of its layers gives."""

    def negated(module: object, args: object, output: object) -> object:
        if isinstance(output, tuple):
            return (-output[0], *output[1:])
        assert isinstance(output, torch.Tensor)
        return -output

    decoder_layers(stage.model)[1][layer].register_forward_hook(negated)


def leave_out(stage: StageExecutor, layer: int) -> None:
    """Have a stage pass on what one of its layers was given."""

    def given(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        rows = args[0] if args else kwargs["hidden_states"]
        return (rows, *output[1:]) if isinstance(output, tuple) else rows

    decoder_layers(stage.model)[1][layer].register_forward_hook(given, with_kwargs=True)
