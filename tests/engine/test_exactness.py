"""Three uneven stages give, token for token, what the library's `generate` gives."""

import random

import pytest

from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import ARCHITECTURES, KINDS, LAYERS, generate, save_tiny
from tests.sweeps import swept

PROMPT_TOKENS = (1, 33, 5, 18, 26, 2, 40, 11)
OUTPUT_TOKENS = (9, 4, 12, 6, 10, 8, 5, 7)


def jobs_of(seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [
        Job(
            number,
            [rng.randrange(3, 160) for _ in range(prompt)],
            tokens,
            scattered=number % 3 == 1,
        )
        for number, (prompt, tokens) in enumerate(zip(PROMPT_TOKENS, OUTPUT_TOKENS, strict=True))
    ]


@pytest.mark.parametrize("name", swept(ARCHITECTURES, *KINDS))
def test_greedy_tokens_equal_generate(name, tmp_path):
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, (0, 2, 3, LAYERS), self_test=True)
    jobs = jobs_of(seed=1)
    outputs = RingDriver(stages).run(jobs)
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs]
    assert len({token for output in outputs for token in output}) > 8
    assert all(stage.kv.tokens_used == 0 for stage in stages)


@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 1, LAYERS - 1, LAYERS)])
def test_any_cut_gives_the_same_tokens(cuts, tmp_path):
    model = save_tiny("tied_llama", tmp_path)
    jobs = jobs_of(seed=2)[:4]
    outputs = RingDriver(load_stages(tmp_path, cuts)).run(jobs)
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs]


def test_recomputation_after_a_release_gives_the_same_tokens(tmp_path):
    save_tiny("llama", tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS))
    first = Job(0, list(range(3, 25)), 10)
    (whole,) = RingDriver(stages).run([first])
    resumed = Job(1, first.prompt + whole[:4], 6)
    assert RingDriver(stages).run([resumed]) == [whole[4:]]
