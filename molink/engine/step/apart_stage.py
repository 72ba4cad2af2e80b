"""A stage whose weights lie in another process: this one has its KV, its tables, and attends.

Everything else is as in any stage. The model's forward pass alone is asked of that process
(`engine_protocol.computing`), which calls back for the attention of each layer; steps that
interrupt another one do so there. What that process loses is nothing that a request is made of.

Shapes: T rows of a step, D hidden size.
"""

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.device.devices import pool_budget_bytes
from molink.engine.device.elements import elements_of, tensor_of
from molink.engine.device.fallbacks import Fallbacks
from molink.engine.device.transfers import Transfers, transfers_on
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.attention_function import AttentionStep, active_step, attend
from molink.engine.layers.staged_mixer import RecurrentStep
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.window_pool import WindowPool
from molink.engine.model.weights import Progress
from molink.engine.step.card_room import make_room_on
from molink.engine.step.forward import Forward
from molink.engine.step.stage import StageExecutor
from molink.engine.step.warm_up import run_span
from molink.engine_protocol.computing import Computing, LayerCall, ModelPass, WeightsLoaded
from molink.wire.elements import Elements
from molink_scheduler.kv.blocks import BLOCK_TOKENS


@dataclass(slots=True)
class ApartForward(Forward):
    """Forward pass of a model in another process."""

    computing: Computing = field(kw_only=True)
    takes_token_ids: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        """It has no model to look at."""

    def rows(
        self,
        ids_T: torch.Tensor,
        hidden_TD: torch.Tensor | None,
        attention: AttentionStep,
        recurrence: RecurrentStep,
        keep: torch.Tensor | int | None,
    ) -> torch.Tensor:
        """Rows [T, D] of a step, or logits of the rows `keep`, as `Forward.rows` gives them."""
        assert not isinstance(keep, int), "recorded steps alone want all logits"
        given = ModelPass(
            attention.plan.positions_T.tolist(),
            attention.plan.batch.has_pieces,
            ids_T.tolist(),
            None if hidden_TD is None else elements_of(hidden_TD.cpu()),
            None if keep is None else keep.tolist(),
        )
        with active_step(attention):
            out_TX = self.computing.rows(given, partial(_attended, self.device))
        return tensor_of(out_TX).to(self.device)


@dataclass(slots=True)
class ApartStage(StageExecutor):
    """Executor of a stage with KV and without weights."""

    computing: Computing = field(kw_only=True)
    weights: WeightsLoaded = field(kw_only=True)

    def __post_init__(self, transfers: Transfers | None) -> None:
        of = (None, self.part, self.description, self.device, self.dtype)
        takes_ids = self.weights.takes_token_ids
        self._forward = ApartForward(*of, computing=self.computing, takes_token_ids=takes_ids)
        self._transfers = transfers or transfers_on(self.device)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, which another process holds."""
        return self.weights.weights_bytes

    @property
    def fallbacks(self) -> Fallbacks:
        """Parts that are computed in a slower way than they could, here or with the weights."""
        kernels = self.attention.fallback if self.attention else None
        return Fallbacks(kernels, None, None, self.weights.swap_fallback)

    def prepare(
        self,
        kv_tokens: int | None,
        progress: Progress = lambda fraction: None,
        stages_here: int = 1,
        kv_dtype: KvDtype = "auto",
        memory_bytes: int | None = None,
    ) -> None:
        """Run one token to learn the shapes of KV, and make room; see `StageExecutor.prepare`."""
        self.attention = AttentionChoice.on(self.device)
        self._pool, self.windows = KvPool(BLOCK_TOKENS, kv_dtype), WindowPool()
        run_span(self, 0, 1)
        self.windows = self.windows.taking(self._pool, self.description.model_len_max)
        if self.card is not None:
            make_room_on(self.card, self, kv_tokens, stages_here, memory_bytes)
            return
        lent_bytes = None if memory_bytes is None else memory_bytes - self.weights_bytes
        self.make_room(kv_tokens, pool_budget_bytes(kv_tokens, stages_here, lent_bytes))


def _attended(device: torch.device, call: LayerCall) -> Elements:
    """Attention of a layer's rows in the step under way, as the library's layers call it."""
    rows = (call.q_THA, call.k_TKA, call.v_TKV)
    q, k, v = (tensor_of(one).to(device).transpose(0, 1)[None] for one in rows)
    sinks_H = None if call.sinks_H is None else tensor_of(call.sinks_H).to(device)
    layer = SimpleNamespace(layer_idx=call.layer)
    numbers = (call.scale, call.window, call.softcap, sinks_H)
    out, _ = attend(layer, q, k, v, None, *numbers)
    return elements_of(out[0].cpu())
