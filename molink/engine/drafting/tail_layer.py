"""A checkpoint's own drafting layer, as one more layer of the tail: it guesses what comes next.

For row p it is given the model's hidden state of row p and the embedding of token p + 1, and what
comes out predicts token p + 2. Its keys and values of row p lie at position p of the request's
blocks, behind those of the last layer. So cached blocks, tiers, rewinds and releases are what they
are without it; and it computes the rows of prompts too, or its guesses would be blind.

After a step the next token of each row that counts is known, but for the last row of a piece of a
prompt, or of one whose token waits for a grammar: that row stays *pending* until the request's next
span begins with it. Where drafts are wanted, the token drawn last and the layer's own output go
through it again, once for each further draft. What it writes for those stands behind all that is
known, and is overwritten by the rows of the next step before anything reads it.

Drafts change no token. Where the layer's KV is not what it could be (the last row of a cached block
that another token followed), or a pass fails, they are worse or none.

Shapes: T rows, R requests that are drafted for, D hidden size, W vocabulary size.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.device.streams import uploaded
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.attention_function import AttentionStep, active_step
from molink.engine.layers.finding_mixers import TRIAL_TOKENS
from molink.engine.layers.latent_expansion import LatentExpansion
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.layers.quantized_linear import use_cuda_kernels
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.engine.memory.step_plan import StepPlan
from molink.engine.model.cpu_rewriting import rewrite
from molink.engine.model.finding_latents import keep_latents
from molink.engine.model.pruning import fit_skips
from molink.engine.proof import probe_rows
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import Sampling, download
from molink.engine.sampling.tail_rows import MASKS_WAIT_S
from molink.engine_protocol.drawn import DrawnToken, GrammarState
from molink.engine_protocol.values import Drafts
from molink_scheduler.batch import Batch
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

log = logging.getLogger(__name__)


class TailStage(Protocol):
    """The tail's executor, as far as its drafting layer asks; `StageExecutor` explains it."""

    description: ModelDescription
    device: torch.device
    attention: AttentionChoice | None
    kv: KvBlocks
    moving: MovingBlocks
    lending: Any

    @property
    def kv_memory(self) -> KvPool:
        """The tensors behind its KV blocks."""


class PendingRow(NamedTuple):
    """Row of a request whose next token is not known yet."""

    position: int
    hidden_1D: torch.Tensor


class KnownRows(NamedTuple):
    """Neighbouring rows of a request whose next tokens are known."""

    request_id: int
    position: int
    """Position of the first one."""
    hidden: Sequence[torch.Tensor]
    """Their hidden states, in pieces [*, D]."""
    next_ids: Sequence[int]
    wants: int
    """Drafts that are wanted behind the last of the next tokens."""


@dataclass(slots=True)
class Guess:
    """Drafts of one request, as far as they have come."""

    request_id: int
    history: SequenceHistory
    """History behind its drafts so far."""
    row: int
    """Row that came out of the layer for its last token, in the pass before."""
    position: int
    """Position of that row."""
    wants: int
    positions_end: int
    """End of the positions that it has blocks for."""
    drafts: list[int] = field(default_factory=list)

    def goes_on(self, token_id: int | None) -> bool:
        """Take the token that was drawn, None: nothing can be; whether another can follow."""
        if token_id is None:
            return False
        self.drafts.append(token_id)
        return len(self.drafts) < self.wants and self.position + 1 < self.positions_end


@dataclass(slots=True)
class TailLayer:
    """Drafting layer of one tail; for the executor's thread."""

    model: Any
    """The model that owns the layer alone (`packaging`)."""
    target: Any
    """The tail's model, whose embeddings and output matrix it shares."""
    is_fed_behind_norm: bool
    failure: str | None = None
    """Why it drafts no more; None: it does."""
    _latents: dict[int, LatentExpansion] = field(init=False, default_factory=dict)
    _seen_TD: torch.Tensor | None = field(init=False, default=None)
    """Hidden states of the step under way."""
    _pending: dict[int, PendingRow] = field(init=False, default_factory=dict)

    def prepare(self, device: torch.device) -> None:
        """Compute as the layers of a stage do on this device, and see from now on what the model's
        last norm is given and gives. The tail's own layers have been prepared."""
        settle_mixers(self.model)
        fit_skips(self.model, lambda: self._try(1, device))
        self._latents = keep_latents(self.model, lambda: self._try(TRIAL_TOKENS, device))
        if device.type == "cpu":
            rewrite(self.model, lambda: self._try(1, device), embeds=True)
        else:
            use_cuda_kernels(self.model)
        self.target.get_decoder().norm.register_forward_hook(self._see)

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""
        self._pending.pop(request_id, None)

    def drafts(
        self,
        stage: TailStage,
        batch: Batch,
        token_ids: Sequence[int],
        drawn: Sequence[DrawnToken],
        histories: Mapping[int, SequenceHistory],
    ) -> Drafts:
        """Compute the rows of the step before, as far as they count by what was `drawn`, and the
        drafts that spans want behind that. A layer that fails drafts no more."""
        seen_TD, self._seen_TD = self._seen_TD, None
        if self.failure is not None or seen_TD is None:
            return ()
        own: dict[int, list[DrawnToken]] = {}
        for token in drawn:
            own.setdefault(token.request_id, []).append(token)
        try:
            runs = list(self._runs(batch, token_ids, own, seen_TD))
            return self._guessed(stage, batch, runs, histories) if runs else ()
        except (RuntimeError, MemoryError) as error:
            self.failure = failure_of(error)
            self._pending.clear()
            return ()

    # -- rows of a step -------------------------------------------------------------------------

    def _runs(
        self,
        batch: Batch,
        token_ids: Sequence[int],
        own: Mapping[int, Sequence[DrawnToken]],
        seen_TD: torch.Tensor,
    ) -> Iterator[KnownRows]:
        """Rows whose next tokens are known now; the last one of a span that has none is kept."""
        row = 0
        for span in batch.spans:
            tokens = [one for one in own.get(span.request_id, ()) if not one.is_lost]
            ids = token_ids[row : row + span.tokens]
            counts = span.known_end - span.start + max(0, len(tokens) - 1)
            hidden_TD = seen_TD[row : row + counts]
            row += span.tokens
            next_ids = [*ids[1:counts], *(one.token_id for one in tokens[-1:])]
            position, hidden = span.start, [hidden_TD[: len(next_ids)]]
            pending = self._pending.pop(span.request_id, None)
            if pending is not None and pending.position == span.start - 1:
                position, next_ids = position - 1, [ids[0], *next_ids]
                hidden.insert(0, pending.hidden_1D)
            if not tokens:
                last = PendingRow(span.start + counts - 1, hidden_TD[counts - 1 :].clone())
                self._pending[span.request_id] = last
            is_open = bool(tokens) and tokens[-1].grammar is GrammarState.OPEN
            if next_ids:
                yield KnownRows(span.request_id, position, hidden, next_ids, span.wants * is_open)

    def _guessed(
        self,
        stage: TailStage,
        batch: Batch,
        runs: Sequence[KnownRows],
        histories: Mapping[int, SequenceHistory],
    ) -> Drafts:
        """Drafts of the runs that want some, once the layer has computed all of them."""
        spans, guesses, row = list[RaggedSpan](), list[Guess](), 0
        for run in runs:
            spans.append(_span(stage, run.request_id, row, run.position, len(run.next_ids)))
            row, last = row + len(run.next_ids), spans[-1].keys - 1
            if run.wants:
                end = min(len(spans[-1].blocks) * BLOCK_TOKENS, stage.description.model_len_max)
                history = histories[run.request_id]
                guesses.append(Guess(run.request_id, history, row - 1, last, run.wants, end))
        hidden_TD = torch.cat([piece for run in runs for piece in run.hidden])
        ids = [token_id for run in runs for token_id in run.next_ids]
        out_TD, live = self._rows(stage, hidden_TD, ids, spans, batch), guesses
        while live:
            out_TD = out_TD[[one.row for one in live]]
            token_ids = drawn_token_ids(self.target.get_output_embeddings()(out_TD), live)
            go_on = [one.goes_on(token_id) for one, token_id in zip(live, token_ids, strict=True)]
            out_TD, live = out_TD[go_on], [one for one, on in zip(live, go_on, strict=True) if on]
            ids = [one.drafts[-1] for one in live]
            out_TD = self._rows(stage, out_TD, ids, _next(stage, live)) if live else out_TD
        return tuple((one.request_id, tuple(one.drafts)) for one in guesses if one.drafts)

    # -- the layer ------------------------------------------------------------------------------

    def _rows(
        self,
        stage: TailStage,
        hidden_TD: torch.Tensor,
        next_ids: Sequence[int],
        spans: Sequence[RaggedSpan],
        batch: Batch | None = None,
    ) -> torch.Tensor:
        """What comes out for rows and their next tokens, [T, D], whose keys and values are kept;
        `batch`: whose cached blocks may still be on their way."""
        plan = StepPlan.of(spans, stage.device, [next_ids])
        step = AttentionStep(plan, stage.kv_memory, latents=self._latents, choice=stage.attention)
        step.arriving = () if batch is None else stage.moving.of(batch)
        lent = nullcontext() if stage.lending is None else stage.lending.reading(spans)
        with lent as step.lent:
            return self._computed(hidden_TD, step)

    def _computed(self, hidden_TD: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        embedded_TD = self.target.get_input_embeddings()(step.plan.beside[0])
        both = torch.cat([self.model.enorm(embedded_TD), self.model.hnorm(hidden_TD)], -1)
        inputs = {"inputs_embeds": self.model.eh_proj(both)[None]}
        inputs["position_ids"] = step.plan.positions_T[None]
        with active_step(step):
            out = self.model.get_decoder()(**inputs, use_cache=False).last_hidden_state
        rows_TD: torch.Tensor = self.model.post_norm(out[0])
        return rows_TD

    def _try(self, rows: int, device: torch.device) -> None:
        """Run the layer over a few rows of nobody."""
        plan = StepPlan.of([RaggedSpan(0, rows, 0, rows, range(1))], device, [[0] * rows])
        weight = self.model.hnorm.weight
        hidden_TD = probe_rows(rows, weight.shape[0], weight.dtype).to(device)
        step = AttentionStep(plan, KvPool(BLOCK_TOKENS), latents=self._latents)
        with torch.inference_mode():
            self._computed(hidden_TD, step)

    def _see(self, norm: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self._seen_TD = (output if self.is_fed_behind_norm else inputs[0])[0]


def drawn_token_ids(logits_RW: torch.Tensor, guesses: Sequence[Guess]) -> list[int | None]:
    """Words that the requests would draw of these logits, with their own sampling and seeds; None:
    nothing can be drawn yet."""
    histories = [one.history for one in guesses]
    known = [one.position + 2 for one in guesses]  # A row predicts the token after next.
    size = logits_RW.shape[1], logits_RW.device
    sampling = Sampling(histories, known, *size, MASKS_WAIT_S)
    table_RC = sampling.table(logits_RW, uploaded(sampling.settings, logits_RW.device))
    return sampling.token_ids(*download(table_RC))


def failure_of(error: Exception) -> str:
    """Why what failed so drafts no more, in a line, which is told."""
    failure = (str(error) or type(error).__name__).splitlines()[0]
    log.warning("the tail drafts no more until the stage starts anew: %s", failure)
    return failure


def _span(stage: TailStage, request_id: int, row: int, position: int, rows: int) -> RaggedSpan:
    table = stage.kv.table(request_id)
    return RaggedSpan(row, rows, position, position + rows, table)


def _next(stage: TailStage, guesses: Sequence[Guess]) -> list[RaggedSpan]:
    """Spans of the rows of drafts, a row each, behind those that have run."""
    for row, one in enumerate(guesses):
        one.row, one.position = row, one.position + 1
        (one.history,) = one.history.along(one.drafts[-1:])[1:]
    return [_span(stage, one.request_id, one.row, one.position, 1) for one in guesses]
