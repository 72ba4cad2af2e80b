"""Loss, divergence and greedy tokens of one model beside another's, as arithmetic on tensors.

An API names twenty tokens for each place, not the whole vocabulary. So the divergence is taken over
the twenty that the compared model names and all others together as a twenty-first: a little less
than over the whole vocabulary, and measured in the same way for MoLink and for the library.

Shapes: T places in a text, V words of the vocabulary, K words named at each place.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["TOP", "Agreement", "Comparison", "Scores", "agreement", "divergences", "scores_of"]

TOP = 20
"""Words that the API names at a place, at most (OpenAI's limit)."""

TIE = 1e-3
"""Logits of two words that are nearer to each other than this are a tie: sums in another order, in
fp32, tell them apart by chance."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What one model says of a piece of text."""

    own_T: torch.Tensor
    """Log-probability of the word that follows."""
    top_ids_TK: torch.Tensor
    top_TK: torch.Tensor
    """The likeliest words and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model's mean loss, and its mean divergence from the reference."""

    loss: float
    divergence: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of a model's greedy tokens are the reference's own choice."""

    equal: int
    ties: int
    """Others whose logit is the highest but for rounding."""
    total: int
    worst: float
    """By how much the worst token's logit is below the highest."""


def scores_of(logits_TV: torch.Tensor, following_T: torch.Tensor) -> Scores:
    """Scores of a text from the logits at each of its places."""
    logprobs_TV = logits_TV.float().log_softmax(-1)
    top = logprobs_TV.topk(min(TOP, logprobs_TV.shape[-1]))
    own_T = logprobs_TV.gather(1, following_T[:, None])[:, 0]
    return Scores(own_T, top.indices, top.values)


def divergences(reference_TV: torch.Tensor, compared: Scores) -> torch.Tensor:
    """Kullback-Leibler divergence from the reference's log-probabilities at each place, in nats."""
    reference_TK = reference_TV.double().gather(1, compared.top_ids_TK)
    named_T = _divergence(reference_TK, compared.top_TK.double()).sum(-1)
    others_T = _divergence(_rest(reference_TK), _rest(compared.top_TK.double()))
    return (named_T + others_T).clamp(min=0)


def _divergence(reference: torch.Tensor, compared: torch.Tensor) -> torch.Tensor:
    return reference.exp() * (reference - compared)


def _rest(logprobs_TK: torch.Tensor) -> torch.Tensor:
    """Log-probability of all words that are not named; never below what fp32 can tell from 1."""
    smallest = torch.finfo(torch.float32).eps
    return (1 - logprobs_TK.exp().sum(-1)).clamp(min=smallest).log()


def agreement(logits_TV: torch.Tensor, tokens: Sequence[int]) -> Agreement:
    """Whether each token was the reference's choice after those before it."""
    chosen = torch.tensor(tokens)
    below_T = logits_TV.amax(-1) - logits_TV.gather(1, chosen[:, None])[:, 0]
    equal = int((logits_TV.argmax(-1) == chosen).sum())
    within = int((below_T <= TIE).sum())
    worst = float(below_T.max()) if len(tokens) else 0.0
    return Agreement(
        equal, within - equal, len(tokens), worst if math.isfinite(worst) else math.inf
    )
