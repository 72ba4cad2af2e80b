"""A stage of the ring: owns some layers, keeps their KV, and computes batches one after another.

Every batch is one forward pass of the pruned model over [1, T] rows: spans of any lengths side by
side, told apart by their positions and by the attention function (`layers.attention_function`);
mixers that keep a state instead of KV run span by span inside the same pass
(`layers.staged_mixer`). The head turns token ids into hidden states, stages between pass these on,
the tail draws tokens.

A step sends its device one copy of all that it indexes by (`memory.step_plan`), and ends when its
result is where a link can read it (`device.transfers`). On a card decode steps are recorded when
the stage loads, and replayed (`graphs`).

Shapes: T rows of a batch, D hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.kv_format import KvDtype
from molink.engine.device.card import Card
from molink.engine.device.devices import pool_budget_bytes, propose_kv_tokens, propose_state_slots
from molink.engine.device.fallbacks import Fallbacks
from molink.engine.device.transfers import Transfers, transfers_on
from molink.engine.drafting.assistant import TailDrafter
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.attention_function import AttentionStep
from molink.engine.layers.finding_mixers import TRIAL_TOKENS, stage_mixers
from molink.engine.layers.latent_expansion import LatentExpansion
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.layers.mixer_projections import hoist
from molink.engine.layers.quantized_linear import use_cuda_kernels
from molink.engine.layers.staged_mixer import RecurrentStep, StagedMixer
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.prompt_cuts import PromptCuts
from molink.engine.memory.ragged_batch import TileRows
from molink.engine.memory.recurrent_rows import decode_index, recurrent_spans
from molink.engine.memory.state_pool import StatePool
from molink.engine.memory.step_plan import StepPlan, plan_step
from molink.engine.memory.window_pool import WindowPool
from molink.engine.model.cpu_rewriting import rewrite
from molink.engine.model.cuda_rewriting import rewrite_for_card
from molink.engine.model.finding_latents import keep_latents
from molink.engine.model.pruning import fit_skips
from molink.engine.model.weights import Progress, StagePart, held_bytes
from molink.engine.proof import Swaps
from molink.engine.sampling.grammar import Grammars
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.tail_rows import TailRows, forced_drafts
from molink.engine.step.card_room import make_room_on
from molink.engine.step.forward import Forward
from molink.engine.step.graphs.decode_graphs import DecodeGraphs
from molink.engine.step.graphs.recording import Recorder
from molink.engine.step.graphs.static_inputs import StaticInputs
from molink.engine.step.lending import Lending, has_lent, make_room_for, reading
from molink.engine.step.step_output import StepOutput
from molink.engine.step.warm_up import run_span, run_tokens
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Release
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks, blocks_for
from molink_scheduler.kv.snapshots import snapshot_slots

DECODE_ROWS_TOGETHER = {"cpu": 1, "cuda": 64}
"""Decode rows that share a mixer's call: see `layers.staged_mixer`."""


@dataclass(slots=True)
class StageExecutor:
    """Executor of one stage: computes batches and keeps their KV. For one thread at a time."""

    model: Any
    part: StagePart
    description: ModelDescription
    device: torch.device
    dtype: torch.dtype
    grammars: Grammars | None = None
    """Grammars of a tail whose tokenizer they can be followed with."""
    attention: AttentionChoice | None = None
    """Choice of the layers that a card's kernel computes; None: `prepare` decides."""
    card: Card | None = None
    """Card of the executor; None on a CPU."""
    transfers: InitVar[Transfers | None] = None
    """Way of rows to the device and back; None: what suits it."""
    recorder: Recorder | None = None
    """Records decode steps, to be replayed; None: all steps are launched."""
    decode_rows_max: int | None = None
    """Decode rows that share a mixer's call; None: what suits the device."""
    kv: KvBlocks = field(default_factory=lambda: KvBlocks(1))
    state_slots: int | None = None
    """Requests whose states it can keep at a time; None: its layers keep no states."""
    states: StatePool = field(default_factory=lambda: StatePool(1))
    _pool: KvPool = field(default_factory=lambda: KvPool(BLOCK_TOKENS))
    windows: WindowPool = field(default_factory=WindowPool)
    _latents: dict[int, LatentExpansion] = field(default_factory=dict)
    _mixers: list[StagedMixer] = field(default_factory=list)
    _expected: dict[int, int] = field(default_factory=dict)
    """Most tokens of each admitted request."""
    _histories: dict[int, SequenceHistory] = field(default_factory=dict)
    moving: MovingBlocks = field(default_factory=MovingBlocks)
    cuts: PromptCuts = field(default_factory=PromptCuts)
    lending: Lending | None = None
    """Its blocks that lie at a lender; None: it has none."""
    drafter: TailDrafter | None = None
    """The checkpoint's own layer, or an assistant, that drafts on the tail; None: none does."""
    _tile_sizes: tuple[TileRows, ...] = ()
    """Tile sizes that layers have asked for, and will again."""
    _graphs: DecodeGraphs | None = None
    _swaps: Swaps = field(default_factory=Swaps)
    _forward: Forward = field(init=False)
    _transfers: Transfers = field(init=False)

    def __post_init__(self, transfers: Transfers | None) -> None:
        self._forward = Forward(self.model, self.part, self.description, self.device, self.dtype)
        self._transfers = transfers or transfers_on(self.device)

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
    def takes_token_ids(self) -> bool:
        """Whether layers or the tail's drafts read the token itself, so that ids go round."""
        return self._forward.takes_token_ids or self.part.drafts

    @property
    def hidden_size(self) -> int:
        """Width of the rows that travel between stages."""
        return self.description.hidden_size

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights that the stage holds."""
        beside = [] if self.drafter is None else [self.drafter.model]
        return sum(map(held_bytes, [self.model, *beside]))

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's KV in the stage's layers."""
        return self._pool.token_bytes

    @property
    def kv_dtype(self) -> KvDtype:
        """Format in which KV is kept."""
        return self._pool.kv_dtype

    @property
    def fallbacks(self) -> Fallbacks:
        """Parts that it computes in a slower way than it could, and why."""
        kernels, graphs = self.attention, self._graphs
        by_kernels = (kernels.fallback, kernels.fusion_fallback) if kernels else (None, None)
        decode = graphs.fallback if graphs else None
        return Fallbacks(*by_kernels, decode, self._swaps.fallback)

    def prepare(
        self,
        kv_tokens: int | None,
        progress: Progress = lambda fraction: None,
        stages_here: int = 1,
        kv_dtype: KvDtype = "auto",
        memory_bytes: int | None = None,
    ) -> None:
        """Run one token to learn the shapes of KV and states and to warm kernels up, then make
        room for `kv_tokens` and, within `memory_bytes` of the device, for states."""
        # Some classes look for padding among the ids, for a warning, and make a GPU wait for that.
        self.model.get_decoder().config.pad_token_id = None
        self.attention = self.attention or AttentionChoice.on(self.device)
        settle_mixers(self.model)
        fit_skips(self.model, self._warm_up)
        self._latents = keep_latents(self.model, self._try_with)
        self._mixers = stage_mixers(self.model, self._try_with)
        # Layers kept whole keys until here, and nobody has called a mixer yet.
        self._pool, self.windows = KvPool(BLOCK_TOKENS, kv_dtype), WindowPool()
        self._forward.forget_calls()
        if (fused := self.attention.fused) is not None:
            rewrite_for_card(self.model, lambda: run_span(self, 0, TRIAL_TOKENS), fused)
        elif self.device.type == "cpu":
            embeds = self.is_head or self.takes_token_ids
            self._swaps = rewrite(
                self.model,
                self._warm_up,
                lambda: run_tokens(self),
                embeds=embeds,
                progress=progress,
            )
        else:
            use_cuda_kernels(self.model)
        hoist(self._mixers, self._warm_up)
        if self.drafter is not None:
            self.drafter.prepare(self.device)
        self._warm_up()
        self.windows = self.windows.taking(self._pool, self.description.model_len_max)
        if self.card is not None:
            make_room_on(self.card, self, kv_tokens, stages_here, memory_bytes)
        else:
            lent_bytes = None if memory_bytes is None else memory_bytes - self.weights_bytes
            self.make_room(kv_tokens, pool_budget_bytes(kv_tokens, stages_here, lent_bytes))
        if self.recorder is not None:
            self._graphs = DecodeGraphs.recorded(self, self.recorder)

    def make_room(self, kv_tokens: int | None, budget_bytes: int) -> None:
        """Make room for `kv_tokens` tokens (None: for as many as fit) and for states within so
        many bytes; what was kept before is gone."""
        state_bytes, token_bytes = self.request_bytes, self.kv_token_bytes
        budget_bytes -= self.windows.shared_bytes
        proposed = propose_state_slots(state_bytes, token_bytes, kv_tokens, budget_bytes)
        slots = proposed or 0
        snapshots = snapshot_slots(slots)
        self.state_slots = None if proposed is None else slots - snapshots
        if kv_tokens is None:
            left_bytes = budget_bytes - slots * state_bytes
            kv_tokens = propose_kv_tokens(token_bytes, left_bytes)
        self.resize_kv(kv_tokens)
        self.states = self.states.resized(slots - snapshots, self._padding, snapshots)
        self.windows = self.windows.resized(slots - snapshots, self._padding, snapshots)

    def resize_kv(self, kv_tokens: int) -> None:
        """Keep so many tokens' KV from now on, in whole blocks, and none of what was kept."""
        blocks, whole = blocks_for(kv_tokens), self.windows.whole_of(self._pool)
        self._pool = self._pool.resized((blocks + self._padding) * BLOCK_TOKENS, whole)
        self.kv, self._graphs = KvBlocks(blocks, self._pool.fold_step), None

    @property
    def request_bytes(self) -> int:
        """Bytes of what one request keeps whatever its length: states, and KV of windows."""
        return self.states.request_bytes + self.windows.request_bytes

    @property
    def kv_memory(self) -> KvPool:
        """The tensors behind its KV blocks."""
        return self._pool

    @property
    def _padding(self) -> int:
        """Blocks, and state slots, that are kept for rows of nobody."""
        return 0 if self.recorder is None else 1

    def admit(self, admission: Admission) -> None:
        """Learn of a request before its first span, as `step` does. One whose first blocks are
        cached begins with these."""
        is_refilled = not all(map(self.kv.has, admission.cached_numbers))
        if not admission.kept_tokens and not is_refilled:
            self.release(Release(admission.request_id))
        if admission.cached:
            if is_refilled:
                self.kv.adopt(admission.request_id, admission.cached_numbers)
            else:
                self.moving.begin(self.kv, admission)
        if admission.snapshot is not None:
            self.states.begin(admission.request_id, admission.snapshot)
            self.windows.begin(admission.request_id, admission.snapshot)
        self._expected[admission.request_id] = admission.tokens_expected
        self.cuts.admit(admission)
        if self.is_tail:
            grammars = self.grammars if admission.sampling.grammar else None
            constraint = None if grammars is None else grammars.constrain(admission)
            history = SequenceHistory.from_admission(admission, constraint)
            self._histories[admission.request_id] = history

    def release(self, release: Release) -> None:
        """Forget a request; one that is unknown is fine."""
        self.moving.forget(release.request_id)
        self.kv.release(release.request_id)
        self.states.release(release.request_id)
        self.windows.release(release.request_id)
        self.cuts.release(release.request_id)
        self._expected.pop(release.request_id, None)
        self._histories.pop(release.request_id, None)
        if self.drafter is not None:
            self.drafter.forget(release.request_id)

    def step(
        self,
        batch: Batch,
        token_ids: Sequence[int] | None = None,
        hidden_TD: torch.Tensor | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> StepOutput:
        """Compute one batch: `token_ids` on the head and where layers read them, `hidden_TD`
        elsewhere, one row per token in batch order.

        `interrupt` is called in every layer, before it attends or mixes; it may compute steps of
        other requests on this stage, which then end before this one.

        Raises OutOfBlocks when the KV is full and StageError for a batch that cannot be computed.
        """
        for admission in batch.admissions:
            self.admit(admission)
        self._grow(batch)
        with torch.inference_mode(), self._transfers.timed(batch.batch_class is DECODE) as time:
            output = self._computed(batch, token_ids, hidden_TD, interrupt)
            self.states.keep(batch.snapshots)
            self.cuts.computed(batch.spans, self.kv, self._pool)
        self.windows.computed(batch.spans, batch.snapshots)
        ids = tuple(token_ids or ()) if self.takes_token_ids and not self.is_tail else None
        return replace(output, token_ids=ids, computed_s=time.seconds)

    def _grow(self, batch: Batch) -> None:
        make_room_for(self.lending, batch)
        self._forward.check(batch, self._expected)
        for span in batch.spans:
            self.kv.grow(span.request_id, span.end, self._expected[span.request_id])
        self.windows.grow(batch.spans)
        self.moving.make_way(self.kv, batch)

    def _computed(
        self,
        batch: Batch,
        token_ids: Sequence[int] | None,
        hidden_TD: torch.Tensor | None,
        interrupt: Callable[[], None] | None,
    ) -> StepOutput:
        wanted = TailRows()
        if self.is_tail:
            vocabulary_size = self.description.vocabulary_size
            wanted = TailRows.of(batch, self._histories, vocabulary_size, self.device)
        ids = self._forward.ids(batch, token_ids)
        rows_TD = self._forward.rows_in(batch, hidden_TD, self._transfers)
        given = (batch, ids, rows_TD, wanted.rows, wanted.settings)
        is_apart = has_lent(self.lending, batch) or self.cuts.is_behind_any(batch)
        graphs = None if self.moving.of(batch) or is_apart else self._graphs
        if (computed := None if graphs is None else graphs.rows(*given)) is None:
            is_prompt = batch.batch_class is PREFILL
            before_layer = self._transfers.bounded(interrupt) if is_prompt else interrupt
            computed = self.launched_rows(*given, before_layer)
        out_TX, sent = computed
        if not self.is_tail:
            return StepOutput(self._transfers.rows_out(out_TX))
        output = StepOutput(None)
        if wanted.rows:
            results = wanted.results(out_TX, sent, self._transfers.read)
            output = StepOutput(None, *results, forced=forced_drafts(batch, self._histories))
        if self.drafter is None:
            return output
        drafts = self.drafter.drafts(self, batch, ids, output.drawn, self._histories)
        return replace(output, drafts=drafts)

    def launched_rows(
        self,
        batch: Batch,
        token_ids: Sequence[int],
        rows_TD: torch.Tensor | None,
        keep: Sequence[int],
        settings: Sequence[np.ndarray] = (),
        interrupt: Callable[[], None] | None = None,
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Rows [T, D] of a batch whose blocks have been grown, or on the tail logits of the rows
        `keep` if there are any; each operation is launched. `token_ids` and `rows_TD`, on the
        device, are those that the stage reads. Beside them `settings`, on the device."""
        recurrent = recurrent_spans(batch, self.states) if self._mixers else []
        beside = token_ids, keep, decode_index(recurrent)
        near = self.windows.blocks if self.windows.layers else None
        given = beside, self._tile_sizes, settings, near, self.cuts
        plan = plan_step(batch, self.kv, self.device, *given)
        ids_T, keep_R, mixed = plan.beside
        rows_max = self.decode_rows_max or DECODE_ROWS_TOGETHER[self.device.type]
        recurrence = RecurrentStep(recurrent, self.states, mixed, rows_max, interrupt)
        attention = self._attention(plan, recurrence)
        attention.arriving, kept = self.moving.of(batch), keep_R if keep else None
        attention.watched = self.cuts.watched(batch)
        with reading(self.lending, plan) as (attention.lent, attention.lent_cut):
            out_TX = self._forward.rows(ids_T, rows_TD, attention, recurrence, kept)
        self._tile_sizes = plan.tile_sizes
        return out_TX, plan.settings

    def static_rows(self, inputs: StaticInputs) -> torch.Tensor:
        """Rows [R, D] of a decode step that reads nothing but `inputs`, on the tail logits of all:
        what can be recorded."""
        recurrence = RecurrentStep.of_decodes(inputs.state_slots_R, self.states)
        attention = self._attention(inputs.plan(), recurrence)
        ids_R, keep = inputs.token_ids_R, 0 if self.is_tail else None
        return self._forward.rows(ids_R, inputs.hidden_RD, attention, recurrence, keep)

    def _attention(self, plan: StepPlan, recurrence: RecurrentStep) -> AttentionStep:
        """The part of attention in a step; its calls are noted among those of mixers."""
        interrupt, called = recurrence.before_mixer, recurrence.layers_called
        step = AttentionStep(plan, self._pool, interrupt, called, self._latents, self.attention)
        step.windows = self.windows
        return step

    def _try_with(self, cache: Cache | None = None) -> None:
        self._forward.try_with(cache, self._latents)

    def _warm_up(self) -> None:
        run_span(self, 0, 1)
