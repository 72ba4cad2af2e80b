"""Fused Triton kernels between a layer's products, one launch for each of `fused_math`'s operators.

Importing this imports Triton, which comes with torch's CUDA builds only; `fused_choice` asks
whether it can be used.

Shapes: as in `fused_math`.
"""

from dataclasses import dataclass

import torch

from molink.engine.kernels.cuda.attention_kind import FUSED, padded
from molink.engine.kernels.cuda.fused_kernels import (
    gate_rows,
    multiply_experts,
    norm_rows,
    turn_and_store,
)
from molink.engine.kernels.cuda.fused_math import PAIRS_MAX, ExpertCall, Gate, Rotation, Turn
from molink.engine.kernels.cuda.ragged_attention import launched
from molink.engine.memory.kv_pool import LayerKv

NORM_COLUMNS_MAX = 2**14
"""Width of a row that one program keeps in its registers."""

GATE_COLUMNS = 1024

EXPERT_ROWS, EXPERT_COLUMNS, EXPERT_INPUTS = 16, 64, 64
"""Tile of a product with an expert: few rows choose the same one."""

EXPERT_STAGES = 3

WIDE_HEAD = 128
"""Beyond it one warp would hold too many numbers of a head."""

NO_TURN = Rotation(0, neighbours=False, step=1)


@dataclass(frozen=True, slots=True)
class TritonFused:
    """The operators as kernels."""

    widen: bool = False
    """Multiply in fp32, as Triton's interpreter has to."""

    def normed(
        self, x: torch.Tensor, weight_N: torch.Tensor | None, epsilon: float
    ) -> torch.Tensor:
        """See FusedOperators. Raises ValueError for rows that are too wide."""
        size = x.shape[-1]
        if size > NORM_COLUMNS_MAX:
            raise ValueError(f"rows of {size} are over {NORM_COLUMNS_MAX}")
        out = x.new_empty(x.shape)
        x_THN = x.flatten(0, -3) if x.dim() > 2 else x[:, None]
        heads = x_THN.shape[1]
        launched(norm_rows, (x_THN.shape[0] * heads,))(
            *(x_THN, _or(weight_N, out), out, *x_THN.stride()[:2], heads, size, epsilon),
            **norm_tiles(size),
            HAS_WEIGHT=weight_N is not None,
            **FUSED,
        )
        return out

    def gated(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """Gate times up, as FusedOperators.gated."""
        outputs = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], outputs)
        rows = x.numel() // x.shape[-1]
        x = x.reshape(rows, -1)
        launched(gate_rows, (rows, -(-outputs // GATE_COLUMNS)))(
            *(x, out, outputs, x.stride(0), gate.slope, gate.limit or 0.0),
            COLUMNS=GATE_COLUMNS,
            ACTIVATION=gate.activation,
            ALTERNATING=gate.alternating,
            HAS_LIMIT=gate.limit is not None,
            **FUSED,
        )
        return out

    def rotated(
        self, q_THA: torch.Tensor, k_TKA: torch.Tensor, turn: Turn
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys rotated, as FusedOperators.rotated."""
        q_out, k_out = (x.new_empty(x.shape) for x in (q_THA, k_TKA))
        _turn_and_store((q_THA, k_TKA, None), turn, None, q_out, (k_out, None), (None, None))
        return q_out, k_out

    def write(
        self,
        q_THA: torch.Tensor,
        k_TKA: torch.Tensor,
        v_TKV: torch.Tensor,
        turn: Turn | None,
        slots_T: torch.Tensor,
        layer: LayerKv,
    ) -> torch.Tensor:
        """Keys and values written to the pool, as FusedOperators.write."""
        keys, values = layer.keys, layer.values
        q_out = q_THA if turn is None else q_THA.new_empty(q_THA.shape)
        into, scales = (keys.rows_SKA, values.rows_SKA), (keys.scales_SK, values.scales_SK)
        _turn_and_store((q_THA, k_TKA, v_TKV), turn, slots_T, q_out, into, scales)
        return q_out

    def expert_product(self, call: ExpertCall) -> torch.Tensor:
        """Products of experts, as FusedOperators.expert_product."""
        experts, inputs, outputs = call.weight_EIO.shape
        pairs = len(call.expert_P)
        out_PO = call.x.new_empty(pairs, outputs)
        launched(multiply_experts, (experts, -(-outputs // EXPERT_COLUMNS)))(
            *(call.x, call.weight_EIO, _or(call.bias_EO, out_PO), call.expert_P),
            *(_or(call.share_P, out_PO), out_PO, pairs, call.pairs_per_row, inputs, outputs),
            *(call.x.stride(0), *call.weight_EIO.stride()),
            **expert_tiles(call.x.dtype),
            HAS_BIAS=call.bias_EO is not None,
            HAS_SHARE=call.share_P is not None,
            WIDEN=self.widen,
            **FUSED,
        )
        return out_PO


def expert_tiles(dtype: torch.dtype) -> dict[str, int]:
    """Sizes of the tiles of a product with experts; fp32 has no matrix units."""
    inputs = EXPERT_INPUTS // 2 if dtype is torch.float32 else EXPERT_INPUTS
    tiles = dict(PAIRS=PAIRS_MAX, ROWS=EXPERT_ROWS, COLUMNS=EXPERT_COLUMNS, INPUTS=inputs)
    return dict(**tiles, num_warps=4, num_stages=EXPERT_STAGES)


def norm_tiles(size: int) -> dict[str, int]:
    """Columns and warps of a program that keeps a row of this size."""
    columns = padded(size)
    return dict(COLUMNS=columns, num_warps=min(16, max(1, columns // 512)))


def head_warps(size: int) -> int:
    """Warps of a program for one head of this size."""
    return 1 if size <= WIDE_HEAD else 2


def _turn_and_store(
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    turn: Turn | None,
    slots_T: torch.Tensor | None,
    q_out: torch.Tensor,
    into: tuple[torch.Tensor, torch.Tensor | None],
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
) -> None:
    """Launch for queries, keys and values; without slots keys are rows of their own, without a
    turn queries stay, and without values nothing is stored for them."""
    q_THA, k_TKA, v_TKV = rows
    keys, values = into
    rotation = NO_TURN if turn is None else turn.rotation
    cos, sin = (q_out, q_out) if turn is None else (turn.cos_TW, turn.sin_TW)
    heads, kv_heads = (0 if turn is None else q_THA.shape[1]), k_TKA.shape[1]
    # What a kernel was not compiled to use still needs a tensor in its place.
    v = k_TKA if v_TKV is None else v_TKV
    value_rows = keys if values is None else values
    launched(turn_and_store, (len(k_TKA), heads + kv_heads * (1 if v_TKV is None else 2)))(
        *(q_THA, k_TKA, v, cos, sin, _or(slots_T, q_out), q_out, keys, value_rows),
        *(_or(scales[0], q_out), _or(scales[1], q_out)),
        *(*q_THA.stride()[:2], *k_TKA.stride()[:2], *v.stride()[:2], cos.stride(0)),
        *(keys.stride(0), value_rows.stride(0), kv_heads),
        HEADS=heads,
        KV_HEADS=kv_heads,
        A=k_TKA.shape[2],
        V=v.shape[2],
        A_PAD=padded(k_TKA.shape[2]),
        V_PAD=padded(v.shape[2]),
        TURNED=rotation.size,
        NEIGHBOURS=rotation.neighbours,
        STEP=rotation.step,
        HAS_SLOTS=slots_T is not None,
        HAS_SCALES=scales[0] is not None,
        num_warps=head_warps(max(k_TKA.shape[2], v.shape[2])),
        **FUSED,
    )


def _or(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if tensor is None else tensor
