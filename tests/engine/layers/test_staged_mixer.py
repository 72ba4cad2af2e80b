"""One mixer over ragged rows equals the same mixer over each request alone."""

import copy

import pytest
import torch
from transformers.cache_utils import LinearAttentionLayer
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import (
    GraniteMoeHybridMambaLayer,
)
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from molink.engine.layers.finding_mixers import stage_mixers
from molink.engine.layers.mixer_projections import hoist
from molink.engine.layers.staged_mixer import (
    MixerCache,
    RecurrentStep,
    active_recurrence,
)
from molink.engine.memory.recurrent_rows import RecurrentSpan, decode_index
from molink.engine.memory.state_pool import StatePool
from molink.engine.self_test.miniature import shrink_config
from tests.engine.recurrent.hybrids import plain_config

MIXERS = {
    "Qwen3.5 27B": (Qwen3_5GatedDeltaNet, "cache_params"),
    "Granite 4.0 H Tiny": (GraniteMoeHybridMambaLayer, "cache_params"),
    "Jamba 3B": (JambaMambaMixer, "cache_params"),
    "LFM2 1.2B": (Lfm2ShortConv, "past_key_values"),
}

PROJECTIONS = {
    "Qwen3.5 27B": (["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"], "out_proj"),
    "Granite 4.0 H Tiny": (["in_proj"], "out_proj"),
    "Jamba 3B": (["in_proj"], "out_proj"),
    "LFM2 1.2B": (["in_proj"], "out_proj"),
}

SPANS = [
    [(0, 5), (1, 1), (2, 19)],
    [(1, 1), (0, 1), (3, 70), (2, 1)],
    [(0, 6), (2, 1), (1, 1)],
    [(3, 1), (2, 1), (1, 1), (0, 1)],
]
"""Steps of (request, rows)."""


class Model(torch.nn.Module):
    """A mixer in a model, called with a cache or without one."""

    def __init__(self, mixer, cache_name: str) -> None:
        super().__init__()
        self.mixer, self.cache_name = mixer, cache_name

    def forward(self, hidden, cache=None):
        return self.mixer(hidden_states=hidden, **{self.cache_name: cache})


def small_mixer(name: str) -> Model:
    config = shrink_config(plain_config(name))
    kind, cache_name = MIXERS[name]
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(1)
        return Model(kind(config, 0), cache_name).eval()


def step(pool: StatePool, spans: list[tuple[int, int, bool]], rows_max: int) -> RecurrentStep:
    places, row = [], 0
    for request, tokens, has_state in spans:
        places.append(RecurrentSpan(row, tokens, pool.take(request), has_state))
        row += tokens
    return RecurrentStep(places, pool, torch.tensor(decode_index(places)), rows_max)


def staged_outputs(model: Model, rows_max: int, hoisted: bool) -> dict[int, torch.Tensor]:
    """Each request's rows out of ragged steps."""
    width = model.mixer.in_proj.in_features if hasattr(model.mixer, "in_proj") else None
    width = width or model.mixer.in_proj_qkv.in_features
    generator = torch.Generator().manual_seed(2)
    staged = stage_mixers(model, lambda cache: model(torch.randn(1, 3, width), cache))
    pool, seen = StatePool(4), {}
    if hoisted:
        first = step(StatePool(1), [(0, 1, False)], 1)
        with active_recurrence(first):
            hoist(staged, lambda: model(torch.randn(1, 1, width)))
    inputs, outputs = {}, {}
    for spans in SPANS:
        rows = sum(tokens for _, tokens in spans)
        hidden = torch.randn(1, rows, width, generator=generator)
        with active_recurrence(step(pool, [(*span, span[0] in seen) for span in spans], rows_max)):
            output = model(hidden)
        row = 0
        for request, tokens in spans:
            seen[request] = True
            inputs.setdefault(request, []).append(hidden[:, row : row + tokens])
            outputs.setdefault(request, []).append(output[:, row : row + tokens])
            row += tokens
    return {n: (torch.cat(inputs[n], 1), torch.cat(outputs[n], 1)) for n in inputs}


@pytest.mark.parametrize("hoisted", [False, True])
@pytest.mark.parametrize("rows_max", [1, 2, 64])
@pytest.mark.parametrize("name", MIXERS)
@torch.inference_mode()
def test_ragged_rows_equal_each_request_alone(name, rows_max, hoisted):
    model = small_mixer(name)
    alone = copy.deepcopy(model)
    for hidden, output in staged_outputs(model, rows_max, hoisted).values():
        cache = MixerCache(LinearAttentionLayer(number_of_states=1))
        torch.testing.assert_close(output, alone(hidden, cache), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MIXERS)
@torch.inference_mode()
def test_projections_are_found_by_what_they_are_handed(name):
    model = small_mixer(name)
    names = {id(part): part_name for part_name, part in model.mixer.named_children()}
    staged_outputs(model, 1, hoisted=True)
    projections = model.mixer.projections
    before, behind = PROJECTIONS[name]
    assert [names[id(one.projection)] for one in projections.before] == before
    assert names[id(projections.behind.projection)] == behind


@torch.inference_mode()
def test_only_mamba_1_goes_token_by_token():
    for name in MIXERS:
        model = small_mixer(name)
        staged_outputs(model, 1, hoisted=False)
        assert model.mixer._kind.continues == (name != "Jamba 3B")
