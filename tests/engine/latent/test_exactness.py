"""Models with latent attention answer over stages what the library's own `generate` does."""

import random

import pytest
import torch

from molink.engine.layers.latent_attention import LatentRows
from molink.engine.self_test import miniature
from tests.engine.latent.latents import LATENTS, SOME, WITHOUT_EXPERTS, small_latent
from tests.engine.recurrent.mixed_answers import is_near_tie
from tests.engine.recurrent.mixed_requests import MixedRequests
from tests.engine.ring_driver import load_stages
from tests.engine.tiny_models import generate
from tests.sweeps import swept

PROMPT_TOKENS = (1, 5, 33, 70, 131, 18, 2, 47)
NEW_TOKENS = 12


@pytest.fixture
def ways(monkeypatch):
    """Calls of each way to attend."""
    counts = {"_absorbed": 0, "_made": 0}
    for name in counts:
        plain = getattr(LatentRows, name)

        def counted(*args, name=name, plain=plain):
            counts[name] += 1
            return plain(*args)

        monkeypatch.setattr(LatentRows, name, counted)
    return counts


@pytest.mark.parametrize("name", swept(LATENTS, *SOME, "MiniCPM3-4B"))
def test_eight_mixed_requests_equal_generate(name, tmp_path, monkeypatch, ways):
    monkeypatch.setattr(miniature, "LAYERS_MIN", 7)
    whole = small_latent(name)
    whole.save_pretrained(tmp_path, max_shard_size="120KB")
    count = whole.config.num_hidden_layers
    stages = load_stages(tmp_path, (0, 1, count - 2, count))
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(1, whole.config.vocab_size, (tokens,), generator=generator).tolist()
        for tokens in PROMPT_TOKENS
    ]
    mixed = MixedRequests(stages, prompts, NEW_TOKENS, random.Random(5))
    answers = mixed.run()
    assert min(mixed.mixed, mixed.restarts, mixed.inside) >= 2
    assert min(ways.values()) > 20
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = generate(whole, prompt, NEW_TOKENS)
        assert answer == wanted or (
            name not in WITHOUT_EXPERTS and is_near_tie(whole, prompt, answer, wanted)
        )
