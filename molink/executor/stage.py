"""A stage of the ring: owns some layers, keeps their KV, and computes batches one after another.

Every batch is one forward pass of the pruned model over [1, T] rows: spans of any lengths side by
side, told apart by their positions and by the attention function (see `attention`). The head turns
token ids into hidden states, the stages between pass hidden states on, the tail draws tokens. All
of them are this one class.

Shapes: T rows of a batch, D hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.model_shape import KvDtype
from molink.errors import StageError, UnsupportedModelError
from molink.executor.architecture.pruning import fit_skips
from molink.executor.attention.function import AttentionStep, active_step
from molink.executor.attention.kv_pool import KvPool
from molink.executor.attention.step_plan import plan_step
from molink.executor.cpu.packed_linear import PackedLinear
from molink.executor.cpu.rewriting import rewrite
from molink.executor.devices import free_memory_bytes, propose_kv_tokens
from molink.executor.grammar import Grammars
from molink.executor.prompt_scores import prompt_rows, prompt_scores
from molink.executor.quantized.linear import use_cuda_kernels
from molink.executor.sampling import DrawnToken, SequenceHistory, sample
from molink.executor.weights import Progress, StagePart
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks, blocks_for
from molink_scheduler.request import SamplingParams

__all__ = ["StageExecutor", "StepOutput"]

WARM_UP_REQUEST_ID = -1
"""No request has it: the coordinator counts from zero."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of one step: hidden states for the next stage, or the tail's tokens."""

    hidden_TD: torch.Tensor | None
    """For the next stage; None on the tail."""
    drawn: tuple[DrawnToken, ...] = ()
    """On the tail: one per span that samples, in batch order."""
    scores: tuple[PromptScore, ...] = ()
    """On the tail: of the prompts' tokens that the batch's rows predict, where they are wanted."""


@dataclass(slots=True)
class StageExecutor:
    """Executor of one stage: computes batches and keeps their KV. For one thread at a time."""

    model: Any
    part: StagePart
    description: ModelDescription
    device: torch.device
    dtype: torch.dtype
    grammars: Grammars | None = None
    """On a tail whose tokenizer grammars can be followed with."""
    kv: KvBlocks = field(default_factory=lambda: KvBlocks(1))
    _pool: KvPool = field(default_factory=lambda: KvPool(BLOCK_TOKENS))
    _expected: dict[int, int] = field(default_factory=dict)
    """Tokens that each admitted request may come to hold."""
    _histories: dict[int, SequenceHistory] = field(default_factory=dict)

    @property
    def layers(self) -> range:
        """The layers it owns."""
        return self.part.layers

    @property
    def is_head(self) -> bool:
        """Whether batches enter the ring here, as token ids."""
        return self.part.is_head

    @property
    def is_tail(self) -> bool:
        """Whether tokens are drawn here."""
        return self.part.is_tail

    @property
    def hidden_size(self) -> int:
        """Width of the rows that travel between stages."""
        return self.description.hidden_size

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights that the stage holds."""
        tensors = {t.data_ptr(): t for t in (*self.model.parameters(), *self.model.buffers())}
        packed: int = sum(
            module.weights_bytes
            for module in self.model.modules()
            if isinstance(module, PackedLinear)
        )
        return packed + sum(int(t.numel()) * int(t.element_size()) for t in tensors.values())

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's KV in the stage's layers."""
        return self._pool.token_bytes

    @property
    def kv_dtype(self) -> KvDtype:
        """How KV is kept."""
        return self._pool.kv_dtype

    def prepare(
        self,
        kv_tokens: int | None,
        progress: Progress = lambda fraction: None,
        stages_here: int = 1,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        """Run one token to learn the KV's shape and to warm kernels up, then make room for
        `kv_tokens`.
        """
        self._pool = KvPool(BLOCK_TOKENS, kv_dtype)
        fit_skips(self.model, self._warm_up)
        if self.device.type == "cpu":
            rewrite(self.model, self._warm_up, embeds=self.is_head, progress=progress)
        else:
            use_cuda_kernels(self.model)
        self._warm_up()
        if kv_tokens is None:
            free_bytes = free_memory_bytes(self.device)
            kv_tokens = propose_kv_tokens(
                self.kv_token_bytes, free_bytes, self.device.type, stages_here
            )
        blocks = blocks_for(kv_tokens)
        self.kv = KvBlocks(blocks)
        self._pool = self._pool.resized(blocks * BLOCK_TOKENS)

    def admit(self, admission: Admission) -> None:
        """Learn of a request before its first span; `step` does this for the admissions of its
        batch.
        """
        self.release(Release(admission.request_id))
        self._expected[admission.request_id] = admission.tokens_expected
        if self.is_tail:
            constraint = None
            if admission.sampling.grammar and self.grammars is not None:
                constraint = self.grammars.constrain(admission)
            history = SequenceHistory.from_admission(admission, constraint)
            self._histories[admission.request_id] = history

    def release(self, release: Release) -> None:
        """Forget a request; one that is unknown is fine."""
        self.kv.release(release.request_id)
        self._expected.pop(release.request_id, None)
        self._histories.pop(release.request_id, None)

    def step(
        self,
        batch: Batch,
        token_ids: Sequence[int] | None = None,
        hidden_TD: torch.Tensor | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> StepOutput:
        """Compute one batch: `token_ids` on the head, `hidden_TD` elsewhere, one row per token in
        batch order.

        `interrupt` is called in every layer, before it attends; it may compute steps of other
        requests on this stage, which then end before this one.

        Raises OutOfBlocks when the KV is full and StageError for a batch that cannot be computed.
        """
        for admission in batch.admissions:
            self.admit(admission)
        self._grow(batch)
        with torch.inference_mode():
            plan = plan_step(batch, self.kv, self.device)
            attention = AttentionStep(plan, self._pool, interrupt)
            inputs = self._inputs(batch, token_ids, hidden_TD)
            inputs["position_ids"] = plan.positions_T[None]
            with active_step(attention):
                output = self._forward(batch, inputs)
        self._check_layers(attention)
        return output

    # -- one step -------------------------------------------------------------------------------

    def _grow(self, batch: Batch) -> None:
        for span in batch.spans:
            if span.request_id not in self._expected:
                raise StageError(f"batch {batch.batch_id}: request {span.request_id} is unknown")
            if span.end > self.description.model_len_max:
                raise StageError(
                    f"batch {batch.batch_id}: position {span.end} is beyond the model's length"
                )
            self.kv.grow(span.request_id, span.end, self._expected[span.request_id])

    def _inputs(
        self, batch: Batch, token_ids: Sequence[int] | None, hidden_TD: torch.Tensor | None
    ) -> dict[str, Any]:
        if self.is_head:
            if token_ids is None or len(token_ids) != batch.tokens:
                raise StageError(f"batch {batch.batch_id}: the head needs {batch.tokens} token ids")
            if min(token_ids) < 0 or max(token_ids) >= self.description.vocabulary_size:
                raise StageError(f"batch {batch.batch_id}: a token id is not in the vocabulary")
            return {"input_ids": torch.tensor(token_ids, device=self.device)[None]}
        if hidden_TD is None or hidden_TD.shape != (batch.tokens, self.hidden_size):
            raise StageError(f"batch {batch.batch_id}: {batch.tokens} hidden rows are needed")
        return {"inputs_embeds": hidden_TD.to(self.device, self.dtype)[None]}

    def _forward(self, batch: Batch, inputs: dict[str, Any]) -> StepOutput:
        samplers, rows = _sampling_rows(batch)
        if not self.is_tail:
            decoder = self.model.get_decoder()
            return StepOutput(decoder(**inputs, use_cache=False).last_hidden_state[0])
        scored = prompt_rows(batch, self._histories)
        if not samplers and not scored:
            self.model.get_decoder()(**inputs, use_cache=False)
            return StepOutput(None)
        keep = torch.tensor([*rows, *(one.row for one in scored)], device=self.device)
        logits_RW = self.model(**inputs, use_cache=False, logits_to_keep=keep).logits[0]
        histories = [self._histories[span.request_id] for span in samplers]
        known_tokens = [span.end for span in samplers]
        drawn = sample(logits_RW[: len(rows)], histories, known_tokens) if samplers else ()
        return StepOutput(None, tuple(drawn), prompt_scores(logits_RW[len(rows) :], scored))

    def _check_layers(self, attention: AttentionStep) -> None:
        if attention.layers_called != list(self.layers):
            raise UnsupportedModelError(
                f"{self.description.name} ({self.description.model_type}) cannot be served: "
                "not every layer computes attention exactly once (recurrent state, for example); "
                "choose a model of ordinary attention layers"
            )

    def _warm_up(self) -> None:
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        admission = Admission(WARM_UP_REQUEST_ID, 1, 1, sampling)
        span = Span(WARM_UP_REQUEST_ID, 0, 1, samples=True)
        batch = Batch(0, BatchClass.DECODE, 0, (span,), (admission,))
        hidden = torch.zeros(1, self.hidden_size, dtype=self.dtype)
        self.step(batch, [0], hidden)
        self.release(Release(WARM_UP_REQUEST_ID))


def _sampling_rows(batch: Batch) -> tuple[list[Span], list[int]]:
    """The spans that sample, and the last row of each."""
    samplers, rows, end = [], [], 0
    for span in batch.spans:
        end += span.tokens
        if span.samples:
            samplers.append(span)
            rows.append(end - 1)
    return samplers, rows
