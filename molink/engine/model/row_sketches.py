"""Sketches of a stage's rows: a few numbers a layer, by which two nodes' work is compared.

A row is brought to length 1 and multiplied by fixed columns of random signs; the products of a
prompt's rows are summed, each with a sign of its position. By the Johnson-Lindenstrauss lemma two
such sums are about as far apart as the rows themselves, so 16 bytes a layer stand for all rows.
Parts add up to the whole: it does not matter where a prompt was cut into spans, nor where the model
was cut into stages. A checksum was rejected: two honest devices sum in another order and differ in
the last bits.

Shapes: T rows, D hidden size, K numbers of a sketch, B boundaries (before a stage's first layer,
and behind each of its layers).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from molink.engine.model.pruning import decoder_layers
from molink.engine_protocol.values import Sketch
from molink_scheduler.audit import NUMBERS
from molink_scheduler.batch import PREFILL, Batch, Span

ROWS_SEED, PLACES_SEED = 17, 18
"""Seeds of the signs. Everybody knows them: who lies says what it likes in any case, and is found
because its neighbours and those who hold the same layers say otherwise."""

DIGITS = 5
"""Digits of a number in a report; fp32 itself is a little finer."""

PROMPTS_MAX = 64
"""Prompts under way at once; of more the oldest are forgotten."""

DONE_MAX = 32
"""Ended ones that are kept to be reported."""


@dataclass(slots=True)
class _Prompt:
    """Prompt of which some of the first tokens have been computed."""

    prompt_tokens: int
    tokens: int
    sums_BK: np.ndarray


class RowSketches:
    """Collector of sketches: watches the layers of a stage between `begins` and `ended` of a
    step."""

    def __init__(
        self, parts: Sequence[tuple[Any, range]], hidden_size: int, device: torch.device
    ) -> None:
        """`parts`: models and their layers, one behind the other."""
        self._boundaries = sum(len(layers) for _, layers in parts) + 1
        signs = _signs(ROWS_SEED, hidden_size * NUMBERS).reshape(hidden_size, NUMBERS)
        self._signs_DK = torch.from_numpy(signs).to(device)
        self._products: dict[int, torch.Tensor] | None = None
        """Products [T, K] at each boundary of the step under way; None: it is not one of
        prompts."""
        self._paused: dict[int, torch.Tensor] | None = None
        """Products of the step within which decode is computed."""
        self._prompts: dict[int, _Prompt] = {}
        self._ended: tuple[Batch, dict[int, torch.Tensor], float] | None = None
        """Step of prompts that has ended and is not summed, and when: its rows leave first."""
        self._done: deque[Sketch] = deque(maxlen=DONE_MAX)
        passed = 0
        for model, layers in parts:
            self._watch(decoder_layers(model)[1], layers, passed)
            passed += len(layers)

    def _watch(self, modules: nn.ModuleList, layers: range, passed: int) -> None:
        """`passed`: layers of the stage before these."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> None:
            self._note(0, args[0] if args else kwargs.get("hidden_states"))

        def behind(boundary: int) -> Any:
            def note(module: nn.Module, args: object, output: Any) -> None:
                self._note(boundary, output[0] if isinstance(output, tuple) else output)

            return note

        if not passed:
            modules[layers.start].register_forward_pre_hook(before, with_kwargs=True)
        for boundary, layer in enumerate(layers, passed + 1):
            modules[layer].register_forward_hook(behind(boundary))

    def _note(self, boundary: int, rows_1TD: Any) -> None:
        if self._products is None or not isinstance(rows_1TD, torch.Tensor):
            return
        rows_TD = rows_1TD.reshape(-1, rows_1TD.shape[-1]).float()
        lengths_T1 = torch.linalg.vector_norm(rows_TD, dim=-1, keepdim=True).clamp_min(1e-30)
        self._products[boundary] = rows_TD @ self._signs_DK / lengths_T1

    def begins(self, batch: Batch) -> None:
        """A step begins; one of decode may begin and end within one of prompts."""
        if batch.batch_class is not PREFILL:
            self._paused, self._products = self._products, None
            return
        self._sum()
        self._products = {}
        for admission in batch.admissions:
            none_BK = np.zeros((self._boundaries, NUMBERS))
            self._prompts.pop(admission.request_id, None)
            self._prompts[admission.request_id] = _Prompt(admission.prompt_tokens, 0, none_BK)
        while len(self._prompts) > PROMPTS_MAX:
            del self._prompts[next(iter(self._prompts))]

    def ended(self, batch: Batch, now: float) -> None:
        """The step has ended."""
        if batch.batch_class is not PREFILL:
            self._products, self._paused = self._paused, None
            return
        self._ended, self._products = (batch, self._products or {}, now), None

    def done(self) -> list[Sketch]:
        """Prompts that have ended, the newest first."""
        self._sum()
        return list(reversed(self._done))

    def _sum(self) -> None:
        """Add up the products of the step that has ended."""
        if self._ended is None:
            return
        (batch, products, now), self._ended = self._ended, None
        whole = [products.get(boundary) for boundary in range(self._boundaries)]
        rows = [one for one in whole if one is not None and len(one) == batch.tokens]
        if len(rows) < self._boundaries:  # A step that was computed in halves, for example.
            for span in batch.spans:
                self._prompts.pop(span.request_id, None)
            return
        products_BTK, first = torch.stack(rows).cpu().numpy(), 0
        for span in batch.spans:
            self._add(span, products_BTK[:, first : first + span.tokens], now)
            first += span.tokens

    def _add(self, span: Span, products_BTK: np.ndarray, now: float) -> None:
        prompt = self._prompts.get(span.request_id)
        if prompt is None:
            return
        if span.start != prompt.tokens:  # What came before was kept from another epoch.
            del self._prompts[span.request_id]
            return
        signs_T = _signs(PLACES_SEED, _doubled(span.end))[span.start : span.end]
        prompt.sums_BK += np.einsum("btk,t->bk", products_BTK.astype(np.float64), signs_T)
        prompt.tokens = span.end
        if span.end >= prompt.prompt_tokens:
            del self._prompts[span.request_id]
            if not np.isfinite(prompt.sums_BK).all():
                return  # Its numbers have overflown, and it ends.
            numbers = tuple(float(f"{one:.{DIGITS}g}") for one in prompt.sums_BK.ravel().tolist())
            self._done.append((now, span.request_id, span.end, numbers))


def _doubled(count: int) -> int:
    """The next power of two: signs are drawn seldom."""
    return 1 << max(10, (count - 1).bit_length())


@lru_cache(maxsize=4)
def _signs(seed: int, count: int) -> np.ndarray:
    """Random signs, the same on every machine; more of them begin with the same."""
    bits = np.random.Philox(key=seed).random_raw(count) >> np.uint64(63)
    return (bits.astype(np.float32) * 2 - 1).astype(np.float32)
