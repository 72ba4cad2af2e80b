"""The attention function that every model of this process calls: ragged batches over a paged KV
pool.

transformers lets us register attention under a name; models then call it with their finished
queries, keys and values, from inside their own forward. It finds the step under way in a context
variable, writes K and V to the pool and attends each sequence over its own slots. No mask is ever
built by the library.

A layer that keeps state elsewhere (a recurrence, a convolution) would come out wrong without any
error, so the step also notes which layers called: exactly the owned ones, once each, is what
`StageExecutor` checks.

Shapes: T rows, H query heads, K kv heads, A head size of keys, V of values, L numbers of a latent
row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from molink.engine.kernels.cuda.rotations import PutOff, RotaryCall
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.latent_attention import LatentRows
from molink.engine.layers.latent_expansion import LatentExpansion
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.lent_attention import LentStep
from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.prompt_cuts import WatchedRows
from molink.engine.memory.step_plan import StepPlan
from molink.engine.memory.window_pool import WindowPool
from molink.errors import UnsupportedModelError

ATTENTION_NAME = "molink"
"""The name under which the library knows this function."""

WITHOUT_EFFECT = frozenset(
    {
        "dropout",
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)
"""Arguments that models hand on and that change nothing here: stages do not train, positions have
been worked into queries and keys, KV is kept by the step, and what else a model returns is none of
attention's business."""


class KvApart(Protocol):
    """Keeper of a stage's KV that attends in another process."""

    def attend(
        self,
        layer_index: int,
        rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        window: int | None,
        variant: AttentionVariant,
    ) -> torch.Tensor:
        """Attention [T, H, V] of a layer's queries [T, H, A], once its keys [T, K, A] and values
        [T, K, V] are kept."""


@dataclass(slots=True)
class AttentionStep:
    """Attention of one step: where rows stand, where K and V are kept, which layers called."""

    plan: StepPlan
    pool: KvPool
    before_attention: Callable[[], None] | None = None
    """Called by every layer before it attends: other steps may run inside, this one waits."""
    layers_called: list[int] = field(default_factory=list)
    latents: Mapping[int, LatentExpansion] = field(default_factory=dict)
    """Expansions of the layers that hand on latent rows in place of keys and values."""
    choice: AttentionChoice | None = None
    """Choice of the layers that a card's kernel computes; None: none."""
    arriving: Sequence[ArrivingBlocks] = ()
    """Cached blocks that its requests begin with, and that are not all there."""
    lent: LentStep | None = None
    """Parts of its attention, where some of its keys lie at a lender; None: none does."""
    lent_cut: LentStep | None = None
    """The same of its layers that are cut, where some of its rows stand behind a cut."""
    windows: WindowPool = field(default_factory=WindowPool)
    """Pool of the layers that keep a window only."""
    watched: WatchedRows | None = None
    """Its rows by which prompts are cut; None: it has none."""
    apart: KvApart | None = None
    """Process that has the KV and attends; None: this one does."""

    def kept_by(self, layer_index: int) -> tuple[StepPlan, KvPool]:
        """The step's geometry over the blocks that a layer has, and their tensors."""
        if self.plan.cut is not None and self.windows.is_cut(layer_index):
            return self.plan.cut, self.pool
        if layer_index not in self.windows.layers:
            return self.plan, self.pool if self.plan.cut is None else self.pool.unfolded
        assert self.plan.windowed is not None, "a step has tables for all classes of layers"
        return self.plan.windowed, self.windows.tensors

    @property
    def is_plain(self) -> bool:
        """Whether nothing in it wants more of a layer than its rows."""
        lent = self.lent, self.lent_cut
        return lent == (None, None) and self.watched is None and self.apart is None

    def see(self, layer_index: int, q_THA: torch.Tensor, variant: AttentionVariant) -> None:
        """Set aside the queries by which prompts are cut in a layer."""
        if self.watched is not None and self.windows.is_cut(layer_index):
            self.watched.see(layer_index, q_THA, variant)

    def written(
        self,
        layer_index: int,
        q_THA: torch.Tensor,
        k_TKA: torch.Tensor,
        v_TKV: torch.Tensor,
        put_off: PutOff | None,
    ) -> tuple[torch.Tensor, LayerKv]:
        """Store a layer's keys and values, turned first if that was put off; returns the queries
        to attend with, and what holds the layer."""
        plan, pool = self.kept_by(layer_index)
        fused = self.choice.fused if self.choice else None
        fused = put_off.choice if put_off else fused
        if fused is None or fused.operators is None:
            return q_THA, pool.write(layer_index, plan.slots_T, k_TKA, v_TKV)
        turn = put_off.turn if put_off else None
        layer = pool.layer_of(layer_index, k_TKA, v_TKV)
        if fused.writes(q_THA, k_TKA, v_TKV, turn, layer):
            rows = (q_THA, k_TKA, v_TKV, turn, plan.slots_T, layer)
            return fused.operators.write(*rows), layer
        if turn is not None:
            q_THA, k_TKA = fused.operators.rotated(q_THA, k_TKA, turn)
        return q_THA, pool.write(layer_index, plan.slots_T, k_TKA, v_TKV)


_active: ContextVar[AttentionStep] = ContextVar("molink_attention_step")


@contextmanager
def active_step(step: AttentionStep) -> Iterator[None]:
    """Let models computed inside the block belong to `step`."""
    token = _active.set(step)
    try:
        yield
    finally:
        _active.reset(token)


def current_step() -> AttentionStep:
    """The step that models are computed in. Raises LookupError outside of one."""
    return _active.get()


def begin_layer(layer_index: int, window: int | None) -> AttentionStep:
    """The step under way, which notes that this layer attends, and how far back. Steps that
    interrupt it run here, and it waits here for cached KV of the layer."""
    step = current_step()
    step.windows.called(layer_index, window)
    if step.before_attention is not None:
        step.before_attention()
    for blocks in step.arriving:
        blocks.await_layer(layer_index, step.before_attention)
    step.layers_called.append(layer_index)
    return step


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [1, H, T, A] queries; returns [1, T, H, V] as the library expects.

    Raises UnsupportedModelError for a mask, and for any argument that is not known to be without
    effect: block selections and biases may only show in sequences longer than the self-test's.
    """
    _refuse_unknown(module, {"attention_mask": attention_mask} | others)
    # Before other steps run inside, which come by this module, too.
    rotary_call: RotaryCall | None = module.__dict__.get("rotary_call")
    put_off = None if rotary_call is None else rotary_call.taken(query, key)
    window = sliding_window or None
    step = begin_layer(module.layer_idx, window)
    variant = AttentionVariant(
        query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux
    )
    q_THA = query[0].transpose(0, 1)
    if step.apart is not None:
        rows = _rows(q_THA, key, value)
        return step.apart.attend(module.layer_idx, rows, window, variant)[None], None
    expansion = step.latents.get(module.layer_idx)
    if expansion is not None:
        return _attend_latents(step, module, key, expansion, q_THA, window, variant)
    q_THA, layer = step.written(module.layer_idx, *_rows(q_THA, key, value), put_off)
    step.see(module.layer_idx, q_THA, variant)
    plan, pool = step.kept_by(module.layer_idx)
    layer_rows = LayerRows(plan.batch, pool, layer, q_THA, window, variant)
    return attended(step, module.layer_idx, plan, layer_rows)[None], None


def attended(
    step: AttentionStep, layer_index: int, plan: StepPlan, rows: LayerRows
) -> torch.Tensor:
    """Attention [T, H, V] of the rows of a step to the keys of a layer that stand by `plan`,
    computed where they lie and by what suits it."""
    lent = step.lent if plan is step.plan else step.lent_cut if plan is step.plan.cut else None
    if lent is not None:
        return lent.attend(layer_index, rows)
    if step.choice is not None:
        given = rows.layer, rows.window, rows.variant
        kernels = step.choice.kernels_for(rows.q_THA, *given)
        if kernels is not None:
            layer, window, variant = given
            return kernels.attend(rows.q_THA, layer, rows.batch, window, variant).out_THV
    return rows.attend()


def _rows(
    q_THA: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values by row."""
    return q_THA, key[0].transpose(0, 1), value[0].transpose(0, 1)


def _attend_latents(
    step: AttentionStep,
    module: Any,
    latent_11TL: torch.Tensor,
    expansion: LatentExpansion,
    *query: Any,
) -> tuple[torch.Tensor, None]:
    if step.choice is not None:
        step.choice.refuse("the kernel takes no latent rows")
    slots_T, rank = step.plan.slots_T, expansion.rank
    rows = step.pool.write_latents(module.layer_idx, slots_T, latent_11TL[0, 0], rank)
    return LatentRows(step.plan.batch, step.pool, rows, expansion, *query).attend()[None], None


def _refuse_unknown(module: Any, given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None and name not in WITHOUT_EFFECT:
            raise UnsupportedModelError(
                f"{type(module).__name__} cannot be cut into stages: it hands its attention "
                f"{name!r}, which the stages' attention does not compute"
            )


AttentionInterface.register(ATTENTION_NAME, attend)


@contextmanager
def observed_attention(observe: Callable[..., None]) -> Iterator[None]:
    """Let `observe` see what models call attention with, inside the block."""

    def attend_observed(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        observe(*args, **kwargs)
        return attend(*args, **kwargs)

    AttentionInterface.register(ATTENTION_NAME, attend_observed)
    try:
        yield
    finally:
        AttentionInterface.register(ATTENTION_NAME, attend)
