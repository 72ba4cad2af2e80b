"""Forward pass of a stage's pruned model over the rows of a step.

Shapes: T rows, D hidden size, X hidden size or, of logits, words.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache

from molink.checkpoint.description import ModelDescription
from molink.engine.device.transfers import Transfers
from molink.engine.kernels.cpu.norms import rows_alone
from molink.engine.layers.attention_function import AttentionStep, active_step
from molink.engine.layers.finding_mixers import TRIAL_TOKENS
from molink.engine.layers.latent_expansion import LatentExpansion
from molink.engine.layers.staged_mixer import RecurrentStep, active_recurrence
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.step_plan import plan_step
from molink.engine.model.layer_calls import LayerCalls
from molink.engine.model.token_inputs import takes_token_ids, token_inputs
from molink.engine.model.weights import StagePart
from molink.engine.step.warm_up import WARM_UP_REQUEST_ID
from molink.errors import StageError
from molink_scheduler.batch import PREFILL, Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks


@dataclass(slots=True)
class Forward:
    """Forward pass of one stage's model."""

    model: Any
    part: StagePart
    description: ModelDescription
    device: torch.device
    dtype: torch.dtype
    takes_token_ids: bool = field(init=False)
    """Whether layers read something of the token itself."""
    _calls: LayerCalls = field(init=False)

    def __post_init__(self) -> None:
        self.takes_token_ids = takes_token_ids(self.model)
        self.forget_calls()

    def forget_calls(self) -> None:
        """Take the next pass for the first: other modules call from now on."""
        self._calls = LayerCalls(self.description, self.model.config, self.part.layers)

    def rows(
        self,
        ids_T: torch.Tensor,
        hidden_TD: torch.Tensor | None,
        attention: AttentionStep,
        recurrence: RecurrentStep,
        keep: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """Rows [T, D] of a step; with `keep`, which only a tail has, logits of these rows, or with
        0 of all. The head reads ids, others hidden rows, and ids too where their layers do."""
        inputs = self._inputs(ids_T, hidden_TD, attention)
        are_alone = not attention.plan.batch.has_pieces
        with active_step(attention), active_recurrence(recurrence), rows_alone(are_alone):
            if keep is None:
                out = self.model.get_decoder()(**inputs, use_cache=False).last_hidden_state
            else:
                out = self.model(**inputs, use_cache=False, logits_to_keep=keep).logits
        self._calls.check(attention.layers_called)
        rows_TX: torch.Tensor = out[0]
        return rows_TX

    def check(self, batch: Batch, known: Container[int]) -> None:
        """Raise StageError for a batch with rows of a request that is not `known`, or of none that
        the model means anything for."""
        for span in batch.spans:
            if span.request_id not in known:
                raise StageError(f"batch {batch.batch_id}: request {span.request_id} is unknown")
            if span.end > self.description.model_len_max:
                raise StageError(
                    f"batch {batch.batch_id}: position {span.end} is beyond the model's length"
                )

    def ids(self, batch: Batch, token_ids: Sequence[int] | None) -> Sequence[int]:
        """Token ids of a batch where the stage or its drafts read them. Raises StageError where
        they cannot be the batch's."""
        drafts = self.part.is_tail and self.part.drafts
        if not (self.part.is_head or self.takes_token_ids or drafts):
            return ()
        if token_ids is None or len(token_ids) != batch.tokens:
            raise StageError(f"batch {batch.batch_id}: {batch.tokens} token ids are needed")
        if min(token_ids) < 0 or max(token_ids) >= self.description.vocabulary_size:
            raise StageError(f"batch {batch.batch_id}: a token id is not in the vocabulary")
        return token_ids

    def rows_in(
        self, batch: Batch, hidden_TD: torch.Tensor | None, transfers: Transfers
    ) -> torch.Tensor | None:
        """Rows on the device, where the stage reads them. Raises StageError where they cannot be
        the batch's."""
        if self.part.is_head:
            return None
        width = self.description.hidden_size
        if hidden_TD is None or hidden_TD.shape != (batch.tokens, width):
            raise StageError(f"batch {batch.batch_id}: {batch.tokens} hidden rows are needed")
        return transfers.rows_in(hidden_TD, self.dtype)

    def try_with(self, cache: Cache | None, latents: dict[int, LatentExpansion]) -> None:
        """Run the decoder once, with a cache or without, over a few rows of one request, whatever
        it calls."""
        tokens, kv = TRIAL_TOKENS, KvBlocks(1)
        kv.grow(WARM_UP_REQUEST_ID, tokens)
        batch = Batch(0, PREFILL, 0, (Span(WARM_UP_REQUEST_ID, 0, tokens, False),))
        size = tokens, self.description.hidden_size
        with torch.inference_mode():
            plan = plan_step(batch, kv, self.device, [[0] * tokens])
            step = AttentionStep(plan, KvPool(BLOCK_TOKENS), latents=latents)
            hidden_TD = torch.zeros(size, dtype=self.dtype, device=self.device)
            inputs = self._inputs(plan.beside[0], hidden_TD, step)
            with active_step(step):
                self.model.get_decoder()(
                    **inputs, past_key_values=cache, use_cache=cache is not None
                )

    def _inputs(
        self, ids_T: torch.Tensor, hidden_TD: torch.Tensor | None, attention: AttentionStep
    ) -> dict[str, torch.Tensor]:
        inputs = {"position_ids": attention.plan.positions_T[None]}
        if self.part.is_head:
            return inputs | {"input_ids": ids_T[None]}
        assert hidden_TD is not None, "all stages but the head read rows"
        inputs["inputs_embeds"] = hidden_TD[None]
        if self.takes_token_ids:
            inputs["per_layer_inputs"] = token_inputs(self.model, ids_T)
        return inputs
