"""Attention over keys and values that another layer has written: of layers that have queries alone.

A model that is built with this function hands it the queries of its rows, and no keys. Which
layer's it reads, each of its attention modules says (`SOURCE`). Rows stand behind all keys of their
spans, so nothing is written, and a window ends with the last key.

Shapes: T rows, H query heads, A head size of keys, V of values.
"""

from typing import Any

import torch
from transformers import AttentionInterface

from molink.engine.layers.attention_function import attended, current_step
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.memory.attention_math import AttentionVariant

KEPT_ATTENTION = "molink_kept"
"""The name under which the library knows this function."""

SOURCE = "kept_layer"
"""Name of the attribute of an attention module that holds the layer whose KV it reads."""


def attend_kept(
    module: Any,
    query: torch.Tensor,
    key: None,
    value: None,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [1, H, T, A] queries to the keys of their spans; returns [1, T, H, V]. Windows
    are the library's two-sided ones: distances up to `sliding_window`, counted from the last
    key."""
    step, source = current_step(), getattr(module, SOURCE)
    plan, pool = step.kept_by(source)
    # A row stands one place behind the last key, and a window holds the row itself.
    window = None if sliding_window is None else sliding_window + 2
    variant = AttentionVariant(query.shape[-1] ** -0.5 if scaling is None else scaling)
    q_THA = query[0].transpose(0, 1)
    rows = LayerRows(plan.batch, pool, pool.layers[source], q_THA, window, variant)
    return attended(step, source, plan, rows)[None], None


AttentionInterface.register(KEPT_ATTENTION, attend_kept)
