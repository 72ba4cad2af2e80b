"""Facts that a stage tells of its layers once they are there."""

from typing import Any

from molink.engine.device.elements import dtype_name
from molink.engine.step.extended_stage import Executor, parts_of
from molink.engine_protocol.values import Prepared
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.request import ModelLimits


def prepared(stage: Executor, block_bytes: int, tokenizer: Any) -> Prepared:
    """Facts of a stage that has loaded; `block_bytes`: of a packed block of its KV."""
    model = stage.description
    return Prepared(
        _loaded(stage),
        stage.layers,
        stage.is_head,
        stage.is_tail,
        stage.takes_token_ids,
        stage.hidden_size,
        stage.kv.blocks_total,
        block_bytes,
        ModelLimits(model.model_len_max, model.vocabulary_size),
        tokenizer,
    )


def _loaded(stage: Executor) -> StageLoaded:
    """Report of its layers, without the ports of their stage."""
    slower = stage.fallbacks
    lent = [part.lending.requests_max for part in parts_of(stage) if part.lending is not None]
    keeping = [part.states for part in parts_of(stage) if part.state_slots is not None]
    return StageLoaded(
        port=0,
        coordinator_port=None,
        device=str(stage.device),
        dtype=dtype_name(stage.dtype),
        kv_tokens_capacity=stage.kv.tokens_capacity,
        weights_bytes=stage.weights_bytes,
        state_slots=stage.state_slots,
        kv_dtype=stage.kv_dtype,
        attention_fallback=slower.attention,
        decode_fallback=slower.decode,
        fusion_fallback=slower.fusion,
        swap_fallback=slower.swaps,
        state_snapshots=min((states.snapshots for states in keeping), default=0),
        can_go_back=not any(states.layers for states in keeping),
        kv_token_bytes=stage.kv_token_bytes,
        requests_max=min(lent, default=None),
        kv_request_bytes=sum(part.request_bytes for part in parts_of(stage)),
        folds=_folds(stage),
        drafts=any(part.drafter is not None for part in parts_of(stage)),
    )


def _folds(stage: Executor) -> int:
    """Blocks of layers that keep all of a cut prompt for which one block has room: one where
    something else reads whole tables."""
    parts = parts_of(stage)
    if any(part.drafter is not None or part.lending is not None for part in parts):
        return 1
    return min(part.kv_memory.folds for part in parts)
