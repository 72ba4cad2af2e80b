"""Scores of a prompt are the model's own log-probabilities, however it is cut and shared."""

import random
from dataclasses import replace

import pytest
import torch

from molink_scheduler.batch import Batch, BatchClass
from tests.engine.ring_driver import GREEDY, Job, load_stages
from tests.engine.tiny_models import LAYERS, save_tiny

SCORED = replace(GREEDY, prompt_logprobs=3)


def scores_of(stages, jobs, span_tokens):
    """Scores of all jobs by request, computed together in spans."""
    found, number = {}, 0
    while any(job.computed < len(job.prompt) for job in jobs):
        active = [job for job in jobs if job.computed < len(job.prompt)]
        spans = tuple(job.next_span(span_tokens) for job in active)
        new = tuple(job.admission() for job in active if job.computed == 0)
        batch = Batch(number, BatchClass.PREFILL, -1, spans, new)
        both = zip(active, spans, strict=True)
        ids = [word for job, span in both for word in job.known[span.start : span.end]]
        output = stages[0].step(batch, ids)
        for stage in stages[1:]:
            output = stage.step(batch, hidden_TD=output.hidden_TD)
        for score in output.scores:
            found.setdefault(score.request_id, {})[score.position] = score
        for job, span in zip(active, spans, strict=True):
            job.computed = span.end
        number += 1
    return found


@pytest.mark.parametrize("span_tokens", [1, 7, 64])
def test_they_are_the_models_own(tmp_path, span_tokens):
    model = save_tiny("llama", tmp_path)
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 160) for _ in range(length)] for length in (40, 12, 1)]
    jobs = [
        Job(1, prompts[0], 1, SCORED),
        Job(2, prompts[1], 1, GREEDY),
        Job(3, prompts[2], 1, SCORED),
    ]
    found = scores_of(load_stages(tmp_path, (0, 2, LAYERS)), jobs, span_tokens)
    assert set(found) == {1}, "one is not asked for, the other has one token"
    with torch.no_grad():
        logprobs_TW = model(torch.tensor([prompts[0]])).logits[0].log_softmax(-1)
    assert sorted(found[1]) == list(range(1, 40))
    for position, score in found[1].items():
        expected_W = logprobs_TW[position - 1]
        own = expected_W[prompts[0][position]].item()
        assert score.logprob == pytest.approx(own, abs=1e-4)
        assert score.rank == int((expected_W > own).sum()) + 1
        best = expected_W.topk(3)
        assert [word for word, _ in score.top] == best.indices.tolist()
        assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_an_answer_that_goes_on_elsewhere_is_not_scored_again(tmp_path):
    save_tiny("llama", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    job = Job(1, [5, 6, 7], 1, SCORED)
    admission = replace(job.admission(), output=(9,))
    job.known.append(9)
    batch = Batch(0, BatchClass.PREFILL, -1, (job.next_span(64),), (admission,))
    output = stage.step(batch, job.known)
    assert len(output.drawn) == 1 and output.scores == ()
