"""Loss, divergence and greedy agreement, on logits whose answers are known."""

import pytest
import torch

from tools.real.scores import TIE, agreement, divergences, scores_of


@pytest.fixture
def logits():
    return torch.randn(30, 500, generator=torch.Generator().manual_seed(0)) * 4


def test_a_model_does_not_diverge_from_itself(logits):
    own = scores_of(logits, torch.zeros(30, dtype=torch.long))
    assert divergences(logits.log_softmax(-1), own).max() < 1e-6


def test_divergence_is_nearly_that_of_the_whole_vocabulary(logits):
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 0.05
    reference, compared = logits.log_softmax(-1), (logits + noise).log_softmax(-1)
    whole = (reference.exp() * (reference - compared)).sum(-1)
    found = divergences(reference, scores_of(compared, torch.zeros(30, dtype=torch.long)))
    assert (found <= whole + 1e-6).all(), "coarser words never show more"
    assert found.mean() > 0.7 * whole.mean()


def test_nonsense_diverges_by_nats(logits):
    shuffled = logits[:, torch.randperm(500, generator=torch.Generator().manual_seed(2))]
    found = divergences(logits.log_softmax(-1), scores_of(shuffled, torch.zeros(30).long()))
    assert found.mean() > 3


def test_words_that_are_certain_leave_nothing_for_the_rest():
    logits = torch.tensor([[60.0, *[0.0] * 99]])
    assert (
        divergences(logits.log_softmax(-1), scores_of(logits, torch.tensor([0]))).isfinite().all()
    )


def test_the_loss_is_of_the_word_that_follows(logits):
    following = torch.arange(30)
    expected = torch.nn.functional.cross_entropy(logits, following)
    assert -scores_of(logits, following).own_T.mean() == pytest.approx(float(expected), rel=1e-5)


def test_a_tie_is_told_from_another_token():
    logits = torch.tensor([[0.0, 5.0, 1.0], [4.0, 4.0 - TIE / 2, 0.0], [3.0, 1.0, 0.0]])
    found = agreement(logits, [1, 1, 1])
    assert (found.equal, found.ties, found.total) == (1, 1, 3)
    assert found.worst == pytest.approx(2.0)


def test_tokens_that_are_no_numbers_do_not_agree():
    found = agreement(torch.full((2, 3), float("nan")), [1, 2])
    assert found.equal + found.ties == 0
