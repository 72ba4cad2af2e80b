"""A stage of the ring: owns some layers, keeps their KV, and computes batches one after another.

Every batch is one forward pass of the pruned model over [1, T] rows: spans of any lengths side by
side, told apart by their positions and by the attention function (see `attention`); mixers that
keep a state instead of KV run span by span inside the same pass (see `recurrent`). The head turns
token ids into hidden states, the stages between pass hidden states on, the tail draws tokens. All
of them are this one class.

A layer that keeps state elsewhere would come out wrong without any error. So every step notes which
layers called attention or a mixer; a layer that calls neither is refused, and so is a step whose
calls are not those of the first. What the calls mean, the self-test proves by numbers.

Shapes: T rows of a batch, D hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.model_shape import KvDtype
from molink.errors import StageError, UnsupportedModelError
from molink.executor.architecture.pruning import fit_skips
from molink.executor.attention.function import AttentionStep, active_step
from molink.executor.attention.kv_pool import KvPool
from molink.executor.attention.step_plan import plan_step
from molink.executor.cpu.packed_linear import PackedLinear
from molink.executor.cpu.rewriting import rewrite
from molink.executor.devices import (
    free_memory_bytes,
    memory_budget_bytes,
    propose_kv_tokens,
    propose_state_slots,
)
from molink.executor.grammar import Grammars
from molink.executor.prompt_scores import prompt_rows, prompt_scores
from molink.executor.quantized.linear import use_cuda_kernels
from molink.executor.recurrent.finding import TRIAL_TOKENS, stage_mixers
from molink.executor.recurrent.library_mixers import settle_mixers
from molink.executor.recurrent.projections import hoist
from molink.executor.recurrent.staged_mixer import (
    RecurrentSpan,
    RecurrentStep,
    StagedMixer,
    active_recurrence,
)
from molink.executor.recurrent.state_pool import StatePool
from molink.executor.sampling import DrawnToken, SequenceHistory, sample
from molink.executor.weights import Progress, StagePart
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks, blocks_for
from molink_scheduler.request import SamplingParams

__all__ = ["StageExecutor", "StepOutput"]

WARM_UP_REQUEST_ID = -1
"""No request has it: the coordinator counts from zero."""

LAYERS_WITHOUT_MIXER = frozenset({"mlp", "moe"})
"""Kinds of layers that mix no tokens and so keep nothing (Nemotron-H)."""

DECODE_ROWS_TOGETHER = {"cpu": 1, "cuda": 64}
"""Decode rows that share a mixer's call: see `recurrent.staged_mixer`."""


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
    decode_rows_max: int | None = None
    """Decode rows that share a mixer's call; None: what suits the device."""
    kv: KvBlocks = field(default_factory=lambda: KvBlocks(1))
    state_slots: int | None = None
    """Requests whose states it can keep at a time; None: its layers keep no states."""
    states: StatePool = field(default_factory=lambda: StatePool(1))
    _pool: KvPool = field(default_factory=lambda: KvPool(BLOCK_TOKENS))
    _mixers: list[StagedMixer] = field(default_factory=list)
    _calls: list[int] | None = None
    """Layers that call attention or a mixer, in order; None before the first complete step."""
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
        memory_bytes: int | None = None,
    ) -> None:
        """Run one token to learn the shapes of KV and states and to warm kernels up, then make
        room for `kv_tokens` and, within `memory_bytes` of the device, for states.
        """
        self._pool = KvPool(BLOCK_TOKENS, kv_dtype)
        settle_mixers(self.model)
        fit_skips(self.model, self._warm_up)
        self._mixers = stage_mixers(self.model, self._try_with)
        self._calls = None  # Nobody has called a mixer yet.
        if self.device.type == "cpu":
            rewrite(self.model, self._warm_up, embeds=self.is_head, progress=progress)
        else:
            use_cuda_kernels(self.model)
        hoist(self._mixers, self._warm_up)
        self._warm_up()
        free_bytes = free_memory_bytes(self.device)
        budget_bytes = memory_budget_bytes(free_bytes, self.device.type, stages_here)
        if memory_bytes is not None:
            budget_bytes = min(budget_bytes, memory_bytes - self.weights_bytes)
        self._make_room(kv_tokens, budget_bytes)

    def _make_room(self, kv_tokens: int | None, budget_bytes: int) -> None:
        state_bytes = self.states.request_bytes
        self.state_slots = propose_state_slots(
            state_bytes, self.kv_token_bytes, kv_tokens, budget_bytes
        )
        slots = self.state_slots or 0
        if kv_tokens is None:
            left_bytes = budget_bytes - slots * state_bytes
            kv_tokens = propose_kv_tokens(self.kv_token_bytes, left_bytes)
        blocks = blocks_for(kv_tokens)
        self.kv = KvBlocks(blocks)
        self._pool = self._pool.resized(blocks * BLOCK_TOKENS)
        self.states = self.states.resized(slots)

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
        self.states.release(release.request_id)
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

        `interrupt` is called in every layer, before it attends or mixes; it may compute steps of
        other requests on this stage, which then end before this one.

        Raises OutOfBlocks when the KV is full and StageError for a batch that cannot be computed.
        """
        for admission in batch.admissions:
            self.admit(admission)
        self._grow(batch)
        with torch.inference_mode():
            plan = plan_step(batch, self.kv, self.device)
            attention = AttentionStep(plan, self._pool, interrupt)
            recurrence = self._recurrence(batch, attention)
            inputs = self._inputs(batch, token_ids, hidden_TD)
            inputs["position_ids"] = plan.positions_T[None]
            with active_step(attention), active_recurrence(recurrence):
                output = self._forward(batch, inputs)
        self._check_layers(attention.layers_called)
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

    def _recurrence(self, batch: Batch, attention: AttentionStep) -> RecurrentStep:
        """The mixers' part of a step; its calls are noted among those of attention."""
        spans, row = [], 0
        for span in batch.spans if self._mixers else ():
            slot = self.states.take(span.request_id)
            spans.append(RecurrentSpan(row, span.tokens, slot, span.start > 0))
            row += span.tokens
        rows_max = self.decode_rows_max or DECODE_ROWS_TOGETHER[self.device.type]
        return RecurrentStep(
            spans,
            self.states,
            self.device,
            rows_max,
            attention.before_attention,
            attention.layers_called,
        )

    def _check_layers(self, called: list[int]) -> None:
        if self._calls is None:
            self._refuse_silent_layers(called)
            self._calls = called
        elif called != self._calls:
            raise UnsupportedModelError(
                f"{self.description.name} ({self.description.model_type}) cannot be served: "
                "its layers do not keep KV or states in the same order in every step"
            )

    def _refuse_silent_layers(self, called: list[int]) -> None:
        config = self.model.config
        kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
        silent = [
            layer
            for layer in self.layers
            if layer not in called and not (kinds and kinds[layer] in LAYERS_WITHOUT_MIXER)
        ]
        if silent or not set(called) <= set(self.layers):
            raise UnsupportedModelError(
                f"{self.description.name} ({self.description.model_type}) cannot be served: "
                f"layer {silent[0] if silent else min(called)} keeps neither KV nor a state that "
                "stages know (a recurrent state in the module itself, for example); "
                "choose a model of ordinary attention layers"
            )

    def _try_with(self, cache: Cache) -> None:
        """Run the decoder once with a cache, over a few rows of one request."""
        tokens = TRIAL_TOKENS
        kv = KvBlocks(1)
        kv.grow(WARM_UP_REQUEST_ID, tokens)
        batch = Batch(0, BatchClass.PREFILL, 0, (Span(WARM_UP_REQUEST_ID, 0, tokens, False),))
        hidden = torch.zeros(tokens, self.hidden_size, dtype=self.dtype)
        with torch.inference_mode():
            plan = plan_step(batch, kv, self.device)
            inputs = self._inputs(batch, [0] * tokens, hidden)
            inputs["position_ids"] = plan.positions_T[None]
            with active_step(AttentionStep(plan, KvPool(BLOCK_TOKENS))):
                self.model.get_decoder()(**inputs, past_key_values=cache, use_cache=True)

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
