"""Choice between our attention kernel and torch's on a card, with the reason.

The kernel needs Triton, which only torch's CUDA builds bring, a C compiler with Python's headers,
which Triton runs at its first use, and a card that Triton compiles matrix products for. A
volunteer's PC may lack any of them, so nothing is believed: for each kind of layer the kernel is
run once on the card, over spans of few and of many rows, and compared with torch. Where it cannot
be made, or gives other numbers, torch computes these layers, and the reason is told.

Layers ask while a stage warms up, so everything is tried, and compiled, before it serves.

Shapes: T rows, H query heads, A head size of keys, V of values.
"""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from molink.engine.device.fallbacks import first_line, one_clause
from molink.engine.kernels.cuda.attention_kind import AttentionKind
from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.kv_rows import KvRows, quantize
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine.proof import alike
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

if TYPE_CHECKING:
    from molink.engine.kernels.cuda.fused_math import FusedOperators
    from molink.engine.kernels.cuda.ragged_attention import RaggedAttention

CAPABILITY_MIN = (8, 0)
"""Older cards have no bfloat16, and since version 3.3 no support by Triton: it compiles for them
without matrix instructions."""

WAYS_APART = {torch.float32: 50.0, torch.float16: 2.0, torch.bfloat16: 2.0}
"""Allowance of the kernel in units of `proof.APART`; an fp32 product may be made of tf32."""

PROBE_SPANS = ((1, 300), (3, 40), (20, 50), (1, 1))
"""Rows and keys: decode over several shares of keys, a draft, a continued prompt, a first token."""

PROBE_SLOTS = 32 * BLOCK_TOKENS

PROBE_WINDOW, PROBE_SOFTCAP = 37, 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AttentionChoice:
    """Choice between our kernel and torch, for each kind of layer that asks."""

    device: torch.device
    kernels: "RaggedAttention | None"
    """Attention kernels of a card; None: torch computes everything."""
    fallback: str | None = None
    """Why torch computes some layers of a card, or all; None: it computes none, or this is no
    card."""
    fused: FusedChoice | None = None
    """Operators that a card's kernels compute between the products; None: this is no card, or its
    model stays as the library has it."""
    _unfused: str | None = None
    """Why it stays as the library has it; None: nobody has said so."""
    _tried: dict[tuple[AttentionKind, bool], bool] = field(default_factory=dict)

    @classmethod
    def on(cls, device: torch.device) -> "AttentionChoice":
        """The choice for a device: a CPU has kernels of its own, which are not asked for here."""
        choice = cls(device, None)
        if device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability < CAPABILITY_MIN:
                number = "".join(map(str, capability))
                choice.without_kernels(f"Triton multiplies no matrices on sm_{number}")
                return choice
            try:
                choice.kernels, choice.fused = _kernels(), FusedChoice(_operators())
            except ImportError as error:
                choice.without_kernels(first_line(error))
        return choice

    @property
    def fusion_fallback(self) -> str | None:
        """Why the library's operations compute, on a card, what kernels could between a layer's
        products, all of it or some; None: they do not."""
        return self._unfused if self.fused is None else self.fused.fallback

    @property
    def computes_all(self) -> bool:
        """Whether our kernel computes all layers that have asked."""
        return self.kernels is not None and self.fallback is None

    def kernels_for(
        self,
        q_THA: torch.Tensor,
        layer: LayerKv,
        window: int | None,
        variant: AttentionVariant,
        *,
        is_part: bool = False,
    ) -> "RaggedAttention | None":
        """The kernels, or None where torch computes this layer. What gives log-sum-exps, for parts
        of a row's keys, is compiled and tried when somebody asks for it first."""
        if self.kernels is None:
            return None
        kind = AttentionKind.of(q_THA, layer, window, variant)
        if (kind, is_part) not in self._tried:
            trouble = self._trouble(kind, self.kernels, is_part)
            self._tried[kind, is_part] = trouble is None
            if trouble is not None:
                self.fall_back(trouble)
        return self.kernels if self._tried[kind, is_part] else None

    def refuse(self, reason: str) -> None:
        """Note that a card's kernel is not made for a layer; on a CPU nobody asks."""
        if self.kernels is not None:
            self.fall_back(reason)

    def without_kernels(self, reason: str) -> None:
        """Leave everything to torch on a card where no kernel can be made."""
        self.fused = FusedChoice(None, reason)
        self.fall_back(reason)

    def leave_unfused(self, reason: str) -> None:
        """Leave what stands between a layer's products as the library has it."""
        self.fused, self._unfused = None, one_clause([("the self-test", reason)])

    def fall_back(self, reason: str) -> None:
        """Note, and tell once, why torch computes what follows."""
        if reason != self.fallback:
            log.warning("attention on %s is computed by torch: %s", self.device, reason)
        self.fallback = reason

    def _trouble(
        self, kind: AttentionKind, kernels: "RaggedAttention", is_part: bool
    ) -> str | None:
        if kind.refusal is not None:
            return kind.refusal
        try:
            return _difference(kind, kernels, self.device, is_part)
        except Exception as error:  # Whatever a compiler or a driver says: torch goes on.
            return first_line(error)


def _kernels() -> "RaggedAttention":
    from molink.engine.kernels.cuda.ragged_attention import RaggedAttention  # Imports Triton.

    return RaggedAttention()


def _operators() -> "FusedOperators":
    from molink.engine.kernels.cuda.fused import TritonFused  # Imports Triton.

    return TritonFused()


# -- the kernel against torch, on the card --------------------------------------------------------


def _difference(
    kind: AttentionKind, kernels: "RaggedAttention", device: torch.device, is_part: bool
) -> str | None:
    """Why the kernel does not give what torch's attention does in fp32, over random spans."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(kind.dtype)

    def rows(size: int) -> KvRows:
        numbers = random(PROBE_SLOTS, kind.kv_heads, size)
        parts = quantize(numbers) if kind.kv_dtype is torch.int8 else (numbers,)
        return KvRows(*(part.to(device) for part in parts))

    layer = LayerKv(rows(kind.key_size), rows(kind.value_size))
    heads = kind.kv_heads * kind.group
    q_THA = random(sum(rows for rows, _ in PROBE_SPANS), heads, kind.key_size).to(device)
    window = PROBE_WINDOW if kind.has_window else None
    sinks_H = random(heads).to(device) if kind.has_sinks else None
    softcap = PROBE_SOFTCAP if kind.has_cap else None
    variant = AttentionVariant(kind.key_size**-0.5, softcap, sinks_H)
    batch = _probe_batch(device)
    got = kernels.attend(q_THA, layer, batch, window, variant, log_sums=is_part)
    wide = LayerKv(*(KvRows(r.numbers(torch.float32)) for r in (layer.keys, layer.values)))
    alone = LayerRows(batch, KvPool(PROBE_SLOTS), wide, q_THA.float(), window, variant)
    wanted_THV, sums_TH = alone.attend_part() if is_part else (alone.attend(), None)
    trouble = alike(got.out_THV, wanted_THV.to(kind.dtype), WAYS_APART[kind.dtype])
    if sums_TH is not None and got.log_sums_TH is not None:
        trouble = trouble or alike(got.log_sums_TH, sums_TH, WAYS_APART[torch.float32])
    return trouble and f"the kernel {trouble} on this card"


def _probe_batch(device: torch.device) -> RaggedBatch:
    """The probe's spans, their blocks taken from the end of the pool to its beginning."""
    spans, row, block = [], 0, PROBE_SLOTS // BLOCK_TOKENS
    for rows, keys in PROBE_SPANS:
        blocks = range(block - 1, block - 1 - blocks_for(keys), -1)
        spans.append(RaggedSpan(row, rows, keys - rows, keys, blocks))
        row, block = row + rows, block - len(blocks)
    return RaggedBatch.of(spans, device)
