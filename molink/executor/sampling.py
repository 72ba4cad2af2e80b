"""From logits to tokens: what the tail does with the last row of each sequence.

The order is that of vLLM: grammar, logit biases, stop tokens that come too soon, penalties,
temperature, min_p, top_k, top_p, then one draw by inverse CDF over the token ids. Truncation works
by thresholds, so tokens that tie with the last one kept are kept too: 16-bit logits tie often, and
a cut that depends on the sorting algorithm would make seeded answers depend on it as well.
Log-probabilities are those of the raw logits, before biases, penalties and temperature, as OpenAI
and vLLM report them; where a grammar leaves only some words, of these.

Every row is computed from its own logits and its own random number. Neither its neighbours nor
their number matter.

Shapes: R rows (sequences that sample now), W words of the vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from molink.executor.grammar import Constraint, GrammarError, GrammarState
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams

__all__ = ["DrawnToken", "SequenceHistory", "sample"]

NUCLEUS_CANDIDATES = 1024
"""Sorted first when looking for the top_p threshold; usually enough, and 50 times cheaper than a
vocabulary.
"""

FRACTION_BITS = 52
"""One less than a double holds, so that uniform * total stays below total after rounding."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """Token that the tail drew, with log-probabilities where they were asked for."""

    request_id: int
    token_id: int
    logprob: float | None = None
    """None unless the request asked for log-probabilities."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with their log-probabilities, best first."""
    grammar: GrammarState = GrammarState.OPEN


@dataclass(slots=True)
class SequenceHistory:
    """Memory of one sequence at the tail: how to sample it, and what penalties count."""

    request_id: int
    prompt_tokens: int
    params: SamplingParams
    prompt_words: frozenset[int]
    output_counts: Counter[int] = field(default_factory=Counter)
    constraint: Constraint | None = None
    """None where there is no grammar, or none can be followed here."""
    scored_prompt: tuple[int, ...] = ()
    """The prompt, where its tokens are to be scored."""

    @classmethod
    def from_admission(
        cls, admission: Admission, constraint: Constraint | None = None
    ) -> "SequenceHistory":
        """The history at admission, tokens of an earlier life included."""
        is_scored = admission.sampling.prompt_logprobs is not None and not admission.output
        return cls(
            admission.request_id,
            admission.prompt_tokens,
            admission.sampling,
            frozenset(admission.prompt),
            Counter(admission.output),
            constraint,
            admission.prompt if is_scored else (),
        )

    @property
    def is_too_short(self) -> bool:
        """Whether the sequence must not end with the next token."""
        return self.output_counts.total() < self.params.min_tokens

    @property
    def changes_logits(self) -> bool:
        """Whether a bias, a stop token that comes too soon or earlier tokens change the logits."""
        params = self.params
        return bool(
            params.logit_bias
            or self.is_too_short
            or params.repetition_penalty != 1.0
            or params.frequency_penalty
            or params.presence_penalty
        )


def sample(
    logits_RW: torch.Tensor, histories: Sequence[SequenceHistory], known_tokens: Sequence[int]
) -> list[DrawnToken]:
    """Draw one token per row and add it to its history; `known_tokens` counts prompt and output of
    each so far.
    """
    logits_RW, lost_rows = _masked(logits_RW.float(), histories)
    chosen_logits_RW = _changed(logits_RW, histories)
    token_ids = chosen_logits_RW.argmax(-1).tolist()
    random_rows = [row for row, h in enumerate(histories) if h.params.temperature > 0]
    if random_rows:
        drawn = _draw(chosen_logits_RW, histories, known_tokens, random_rows)
        for row, token_id in zip(random_rows, drawn, strict=True):
            token_ids[row] = token_id
    for history, token_id in zip(histories, token_ids, strict=True):
        history.output_counts[token_id] += 1
    states = [
        GrammarState.FAILED if row in lost_rows else _advanced(history, token_ids[row])
        for row, history in enumerate(histories)
    ]
    return [
        _drawn(logits_RW[row], history, token_ids[row], states[row])
        for row, history in enumerate(histories)
    ]


# -- grammars -------------------------------------------------------------------------------------


def _masked(
    logits_RW: torch.Tensor, histories: Sequence[SequenceHistory]
) -> tuple[torch.Tensor, set[int]]:
    """The logits with -inf for words that a row's grammar forbids, and the rows whose grammar
    cannot be followed any further."""
    rows = [row for row, history in enumerate(histories) if history.params.grammar]
    if not rows:
        return logits_RW, set()
    masked_RW, lost = logits_RW.clone(), set()
    for row in rows:
        try:
            masked_RW[row].masked_fill_(_forbidden(histories[row]), float("-inf"))
        except GrammarError:
            lost.add(row)
    return masked_RW, lost


def _forbidden(history: SequenceHistory) -> torch.Tensor:
    if history.constraint is None:
        raise GrammarError("this stage's tokenizer follows no grammars")
    return history.constraint.forbidden()


def _advanced(history: SequenceHistory, token_id: int) -> GrammarState:
    return GrammarState.OPEN if history.constraint is None else history.constraint.take(token_id)


# -- biases and penalties -------------------------------------------------------------------------


def _changed(logits_RW: torch.Tensor, histories: Sequence[SequenceHistory]) -> torch.Tensor:
    if not any(history.changes_logits for history in histories):
        return logits_RW
    changed_RW = logits_RW.clone()
    for row, history in enumerate(histories):
        if history.changes_logits:
            _bias(changed_RW[row], history.params.logit_bias)
            if history.is_too_short:
                _forbid(changed_RW[row], history.params.stop_token_ids)
            _penalise(changed_RW[row], history)
    return changed_RW


def _bias(logits_W: torch.Tensor, pairs: Sequence[tuple[int, float]]) -> None:
    if pairs:
        token_ids, biases = zip(*pairs, strict=True)
        index = torch.tensor(token_ids, device=logits_W.device)
        logits_W[index] += torch.tensor(biases, device=logits_W.device)


def _forbid(logits_W: torch.Tensor, token_ids: Sequence[int]) -> None:
    """Set words to -inf, unless no word would be left: a grammar may want the end here."""
    allowed_W = logits_W.clone()
    allowed_W[list(token_ids)] = float("-inf")
    if allowed_W.max() > float("-inf"):
        logits_W.copy_(allowed_W)


def _penalise(logits_W: torch.Tensor, history: SequenceHistory) -> None:
    """Lower, in place, the logits of earlier tokens: repetition by a factor, frequency and presence
    by a difference.
    """
    params, counts = history.params, history.output_counts
    seen = sorted(history.prompt_words | counts.keys())
    if params.repetition_penalty != 1.0 and seen:
        index = torch.tensor(seen, device=logits_W.device)
        values = logits_W[index]
        # A penalty above 1 must make a token less likely, so negative logits are multiplied.
        factor = torch.where(values > 0, 1 / params.repetition_penalty, params.repetition_penalty)
        logits_W[index] = values * factor
    if counts and (params.frequency_penalty or params.presence_penalty):
        index = torch.tensor(list(counts.keys()), device=logits_W.device)
        count = torch.tensor(list(counts.values()), device=logits_W.device, dtype=torch.float32)
        logits_W[index] -= count * params.frequency_penalty + params.presence_penalty


# -- drawing --------------------------------------------------------------------------------------


def _draw(
    logits_RW: torch.Tensor,
    histories: Sequence[SequenceHistory],
    known_tokens: Sequence[int],
    rows: list[int],
) -> list[int]:
    """Draw the given rows by inverse CDF."""
    device = logits_RW.device
    drawing = [histories[row] for row in rows]
    temperatures = torch.tensor([h.params.temperature for h in drawing], device=device)
    scaled_RW = logits_RW[rows] / temperatures[:, None]
    for row, history in enumerate(drawing):
        _truncate(scaled_RW[row], history.params)
    numbers = [
        uniform(h.params.seed, known_tokens[row] - h.prompt_tokens)
        for row, h in zip(rows, drawing, strict=True)
    ]
    return inverse_cdf(scaled_RW, torch.tensor(numbers, dtype=torch.float64, device=device))


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that draws the generated token at `position`.

    Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2,
    3", SC 2011): the number is a function of a key and a counter. With the request's seed as key
    and the token's position as counter there is no state to keep, to lose with a failed stage, or
    to share between requests.
    """
    raw = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (raw >> (64 - FRACTION_BITS)) * 2.0**-FRACTION_BITS


def inverse_cdf(logits_RW: torch.Tensor, uniforms_R: torch.Tensor) -> list[int]:
    """The first word of each row at which the cumulative probability exceeds the row's number."""
    cumulative_RW = torch.softmax(logits_RW, -1, dtype=torch.float64).cumsum(-1)
    # Relative to the sum as it came out, which rounding keeps from being exactly one.
    targets_R = uniforms_R * cumulative_RW[:, -1]
    words_R1 = torch.searchsorted(cumulative_RW, targets_R[:, None], right=True)
    return words_R1[:, 0].clamp_(max=logits_RW.shape[1] - 1).tolist()


def _truncate(logits_W: torch.Tensor, params: SamplingParams) -> None:
    """Set to -inf, in place, what min_p, top_k and top_p exclude."""
    if params.min_p > 0:
        # p >= min_p * p_max is, between logits, logit >= max + log(min_p).
        _drop_below(logits_W, logits_W.max() + torch.tensor(params.min_p).log().item())
    if 0 < params.top_k < len(logits_W):
        _drop_below(logits_W, logits_W.topk(params.top_k).values[-1])
    if params.top_p < 1:
        _drop_below(logits_W, _nucleus_threshold(logits_W, params.top_p))


def _drop_below(logits_W: torch.Tensor, threshold: torch.Tensor) -> None:
    logits_W.masked_fill_(logits_W < threshold, float("-inf"))


def _nucleus_threshold(logits_W: torch.Tensor, top_p: float) -> torch.Tensor:
    """Logit of the last word in the smallest set of the likeliest whose probability reaches
    `top_p`.
    """
    log_total = torch.logsumexp(logits_W.double(), 0)
    # The whole vocabulary is sorted only where the likeliest candidates do not reach `top_p`.
    for count in (min(NUCLEUS_CANDIDATES, len(logits_W)), len(logits_W)):
        best = logits_W.topk(count).values
        cumulative = (best.double() - log_total).exp().cumsum(0)
        # Words before the one at which the sum reaches `top_p`; that word still belongs to it.
        reached = int((cumulative < top_p).sum())
        if reached < count:
            return best[reached]
    return best[-1]


# -- log-probabilities ----------------------------------------------------------------------------


def _drawn(
    logits_W: torch.Tensor, history: SequenceHistory, token_id: int, grammar: GrammarState
) -> DrawnToken:
    count = history.params.logprobs
    if count is None:
        return DrawnToken(history.request_id, token_id, grammar=grammar)
    logprobs_W = torch.log_softmax(logits_W, -1)
    best = logprobs_W.topk(min(count, len(logprobs_W)))
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    top = tuple((word, logprob) for word, logprob in ranked if logprob > float("-inf"))
    return DrawnToken(history.request_id, token_id, float(logprobs_W[token_id]), top, grammar)
