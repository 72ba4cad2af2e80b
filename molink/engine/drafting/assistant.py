"""An assistant of Gemma 4 on the tail: a second checkpoint, of queries over the model's own KV.

It is given the embedding of the last token, from the model's table, and the model's hidden state,
behind the last norm, of the row that drew that token. What comes out, turned back to the model's
width, is given to it with the draft for the next one. All drafts of a round are drawn at the place
of the last token, over the keys of all tokens before it: these are known, so a rewind, a cached
block or a wrong draft before leaves nothing behind that it reads. It writes no KV, and prompts cost
it nothing.

The library's generator cuts the model's KV to the length of the text, and so leaves in the key of
the first wrong draft of the round before, which stands where the last token will; here the last key
is that of the token before it, as in a round without wrong drafts.

Shapes: T rows of a step, R requests that are drafted for, D the model's hidden size, A the
assistant's, W words.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from transformers.cache_utils import KVSharingDict

from molink.engine.device.streams import uploaded
from molink.engine.drafting.tail_layer import (
    Guess,
    TailLayer,
    TailStage,
    drawn_token_ids,
    failure_of,
)
from molink.engine.layers.attention_function import AttentionStep, active_step
from molink.engine.layers.quantized_linear import use_cuda_kernels
from molink.engine.memory.prompt_cuts import PromptCuts
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine.memory.step_plan import StepPlan
from molink.engine.memory.window_pool import WindowPool
from molink.engine.sampling.history import SequenceHistory
from molink.engine_protocol.drawn import DrawnToken, GrammarState
from molink.engine_protocol.values import Drafts
from molink_scheduler.batch import Batch


class KeptStage(TailStage, Protocol):
    """The tail's executor, as far as its KV is read; `StageExecutor` explains it."""

    windows: WindowPool
    cuts: PromptCuts


@dataclass(slots=True, kw_only=True)
class Asked(Guess):
    """Drafts of one request, and what they are drawn over."""

    keys: int
    """Tokens before the last one, whose place that is."""


@dataclass(slots=True)
class Assistant:
    """Assistant of one tail; for the executor's thread."""

    model: Any
    """The library's, whose layers read those of the stage (`assistant_loading`)."""
    target: Any
    """The tail's model, whose embeddings it is given."""
    failure: str | None = None
    """Why it drafts no more; None: it does."""
    _seen_TD: torch.Tensor | None = field(init=False, default=None)
    """Hidden states of the step under way."""

    def prepare(self, device: torch.device) -> None:
        """See from now on what the model's last norm gives. The tail's layers have been
        prepared."""
        if device.type != "cpu":
            use_cuda_kernels(self.model)
        self.target.get_decoder().norm.register_forward_hook(self._see)

    def forget(self, request_id: int) -> None:
        """Forget a request, of which it keeps nothing."""

    def drafts(
        self,
        stage: KeptStage,
        batch: Batch,
        token_ids: Sequence[int],
        drawn: Sequence[DrawnToken],
        histories: Mapping[int, SequenceHistory],
    ) -> Drafts:
        """The drafts that spans of the step before want behind the tokens that were `drawn`. One
        that fails drafts no more."""
        seen_TD, self._seen_TD = self._seen_TD, None
        if self.failure is not None or seen_TD is None:
            return ()
        try:
            asked = list(_asked(stage, batch, drawn, histories))
            return self._guessed(stage, asked, seen_TD) if asked else ()
        except Exception as error:  # Whatever it is: no token needs its drafts.
            self.failure = failure_of(error)
            return ()

    def _guessed(
        self, stage: KeptStage, asked: Sequence[tuple[Asked, int]], seen_TD: torch.Tensor
    ) -> Drafts:
        """`asked`: who is drafted for, with the last token of each."""
        guesses, ids = [one for one, _ in asked], [token_id for _, token_id in asked]
        hidden_RD, live = seen_TD[[one.row for one in guesses]], guesses
        while live:
            out_RA = self._rows(hidden_RD, *_step(stage, live, ids))
            token_ids = drawn_token_ids(self._logits(out_RA), live)
            go_on = [one.goes_on(token_id) for one, token_id in zip(live, token_ids, strict=True)]
            live = [one for one, on in zip(live, go_on, strict=True) if on]
            hidden_RD, ids = self.model.post_projection(out_RA[go_on]), []
            for one in live:
                ids.append(one.drafts[-1])
                one.position += 1
                (one.history,) = one.history.along(one.drafts[-1:])[1:]
        return tuple((one.request_id, tuple(one.drafts)) for one in guesses if one.drafts)

    def _rows(
        self, hidden_RD: torch.Tensor, ids_R: torch.Tensor, step: AttentionStep, lent: Any
    ) -> torch.Tensor:
        """What comes out for hidden states and the tokens behind them, [R, A]; `lent`: keeps what
        lies at a lender where it is."""
        both = torch.cat([self.target.get_input_embeddings()(ids_R), hidden_RD], -1)
        inputs = {"inputs_embeds": self.model.pre_projection(both)[None]}
        inputs["position_ids"] = step.plan.positions_T[None]
        kinds = self.model.config.get_text_config().layer_types
        with lent as step.lent, active_step(step):
            out = self.model.model(
                **inputs,
                attention_mask=dict.fromkeys(kinds),
                shared_kv_states=KVSharingDict(dict.fromkeys(kinds, (None, None))),
                use_cache=False,
                logits_to_keep=None,  # A number would have the library leave rows out.
            )
        rows_RA: torch.Tensor = out.last_hidden_state[0]
        return rows_RA

    def _logits(self, out_RA: torch.Tensor) -> torch.Tensor:
        """Logits [R, W], those of few clusters of words alone where it has some in order."""
        if self.model.masked_embedding is not None:
            among = self.model.masked_embedding(out_RA[None], self.model.lm_head.weight)
            logits_RW: torch.Tensor = among[0]
        else:
            logits_RW = self.model.lm_head(out_RA)
        return logits_RW

    def _see(self, norm: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self._seen_TD = output[0]


TailDrafter = TailLayer | Assistant
"""What drafts on a tail: a layer of the checkpoint, or a second one."""


def _asked(
    stage: KeptStage,
    batch: Batch,
    drawn: Sequence[DrawnToken],
    histories: Mapping[int, SequenceHistory],
) -> Iterator[tuple[Asked, int]]:
    """Who is to be drafted for, and the last token of each; `row`: that which drew the token. Not
    those whose prompts were cut: what is left of their keys is another layer's choice."""
    own: dict[int, list[DrawnToken]] = {}
    for token in drawn:
        own.setdefault(token.request_id, []).append(token)
    row, length = 0, stage.description.model_len_max
    for span in batch.spans:
        tokens = [one for one in own.get(span.request_id, ()) if not one.is_lost]
        is_open = bool(tokens) and tokens[-1].grammar is GrammarState.OPEN
        if span.wants and is_open and stage.cuts.behind(span) is None:
            last = span.known_end - span.start + len(tokens) - 2
            place = row + last, span.start + last, span.wants, length
            given = span.request_id, histories[span.request_id], *place
            yield Asked(*given, keys=span.start + last + 1), tokens[-1].token_id
        row += span.tokens


def _step(
    stage: KeptStage, asked: Sequence[Asked], ids: Sequence[int]
) -> tuple[torch.Tensor, AttentionStep, Any]:
    """Tokens, and a step of a row for each request behind all of its keys, which writes nothing;
    and what keeps its blocks at a lender where they are."""
    spans = [
        RaggedSpan(row, 1, one.keys, one.keys, stage.kv.table(one.request_id))
        for row, one in enumerate(asked)
    ]
    numbers = [np.array(one, np.int32) for one in ([one.keys for one in asked], ids)]
    positions_R, ids_R = (one.long() for one in uploaded(numbers, stage.device))

    def over(spans: Sequence[RaggedSpan]) -> StepPlan:
        return StepPlan(positions_R, positions_R[:0], RaggedBatch.of(spans, stage.device))

    plan = over(spans)
    if stage.windows.layers:
        tables = [stage.windows.blocks.table(one.request_id) for one in asked]
        near = [replace(one, blocks=own) for one, own in zip(spans, tables, strict=True)]
        plan = replace(plan, windowed=over(near))
    step = AttentionStep(plan, stage.kv_memory, choice=stage.attention)
    step.windows = stage.windows
    lent = nullcontext() if stage.lending is None else stage.lending.reading(spans)
    return ids_R, step, lent
