"""Does a card compute what stands between a layer's products with our kernels, and are they right
there?

As with attention (`attention_choice`) nothing is believed: Triton or a compiler may be missing, and
what a kernel gives on this card is compared with torch, once for each kind of use, while a stage
warms up. Where it cannot be made, or gives other numbers, the library's own operations stay.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.device.fallbacks import first_line, one_clause
from molink.engine.kernels.cuda.fused_math import FusedOperators, PlainFused, Turn
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.proof import alike
from molink_scheduler.kv.blocks import BLOCK_TOKENS

INT8_STEP = 4 / 127
"""A code is rounded to the other side where its number lies between two; beside a small channel
that is some times its size."""

PROBE_ROWS = 5

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FusedChoice:
    """Fused operators of a device, as far as they are proven there."""

    operators: FusedOperators | None
    """Operators of a card; None: torch computes everything."""
    unavailable: str | None = None
    """Why there are no operators; None: there are, or nobody wants any."""
    _troubles: dict[tuple[str, Hashable], str | None] = field(default_factory=dict)
    """Trouble of the kernel for each use and kind that was tried; None: nothing is wrong."""

    def trusts(self, what: str, kind: Hashable, is_right: Callable[[], bool]) -> bool:
        """Whether a kernel gives what it should, as `is_right` found for the first of a kind."""
        if self.operators is None:
            return False
        if (what, kind) not in self._troubles:
            trouble = self._troubles[what, kind] = _trouble(is_right)
            if trouble is not None:
                log.warning("%s is left to torch's operations: %s", what, trouble)
        return self._troubles[what, kind] is None

    @property
    def fallback(self) -> str | None:
        """Why torch's operations compute some of it, or all; None: they compute none."""
        found = ((what, why) for (what, _), why in self._troubles.items() if why is not None)
        return self.unavailable or one_clause(dict.fromkeys(found))

    def writes(
        self,
        q_THA: torch.Tensor,
        k_TKA: torch.Tensor,
        v_TKV: torch.Tensor,
        turn: Turn | None,
        layer: LayerKv,
    ) -> bool:
        """Whether keys and values like these are stored right."""
        rows = (q_THA, k_TKA, v_TKV)
        kind = (
            *(tuple(x.shape[1:]) for x in rows),
            *(q_THA.dtype, layer.keys.rows_SKA.dtype),
            None if turn is None else (turn.rotation, turn.cos_TW.dtype, turn.cos_TW.shape[1]),
        )
        return self.trusts(
            "storing keys and values", kind, lambda: self._writes(*rows, turn, layer)
        )

    def _writes(
        self,
        q_THA: torch.Tensor,
        k_TKA: torch.Tensor,
        v_TKV: torch.Tensor,
        turn: Turn | None,
        layer: LayerKv,
    ) -> bool:
        generator = torch.Generator().manual_seed(0)

        def random(rows: torch.Tensor) -> torch.Tensor:
            numbers = torch.randn(PROBE_ROWS, *rows.shape[1:], generator=generator)
            return numbers.to(rows.device, rows.dtype)

        q, k, v = random(q_THA), random(k_TKA), random(v_TKV)
        if turn is not None:
            turn = Turn(turn.rotation, random(turn.cos_TW), random(turn.sin_TW))
        slots_T = torch.randperm(BLOCK_TOKENS, generator=generator)[:PROBE_ROWS].to(q.device)
        kv_dtype: KvDtype = "auto" if layer.keys.scales_SK is None else "int8"
        results = []
        assert self.operators is not None
        for operators in (self.operators, PlainFused()):
            into = KvPool(BLOCK_TOKENS, kv_dtype).layer_of(0, k, v)
            q_out = operators.write(q, k, v, turn, slots_T, into)
            stored = (rows.numbers(torch.float32) for rows in (into.keys, into.values))
            results.append((q_out, *stored))
        more = INT8_STEP if kv_dtype == "int8" else 0.0
        pairs = zip(*results, strict=True)
        return all(alike(got, wanted, more=more) is None for got, wanted in pairs)


def _trouble(is_right: Callable[[], bool]) -> str | None:
    try:
        with torch.inference_mode():
            return None if is_right() else "the kernel differs from torch on this card"
    except Exception as error:  # Whatever a compiler or a driver says: torch goes on.
        return first_line(error)
