"""Steps of rewritten hybrid models read nothing on the host but tokens at their end, and launch no
more operations than they are known to."""

from functools import cache

import pytest

from molink.engine.model.pruning import decoder_layers
from tests.engine.recurrent.hybrids import HYBRIDS, KINDS
from tests.engine.step_costs.dispatched import HostReads
from tests.engine.step_costs.meta_stages import decode, fused_stage, layers_of, prompts, with_kernel
from tests.sweeps import swept

ROWS, TOKENS = 16, 3

CEILINGS = {
    "Qwen3-Next 80B-A3B": 78.5,
    "Qwen3.5 27B": 59.75,
    "Qwen3.5 35B-A3B": 74.75,
    "Granite 4.0 H Tiny": 52.5,
    "Granite 4.0 H 1B": 42.5,
    "Falcon-H1 7B": 55,
    "Bamba 9B": 46.2,
    "Nemotron 3 Nano 30B-A3B": 35,
    "Nemotron Nano 9B v2": 25.75,
    "Jamba 3B": 44.375,
    "LFM2 1.2B": 17.75,
    "LFM2 8B-A1B": 22.75,
    "Kimi-Linear 48B-A3B": 87.25,
    "Olmo-Hybrid 7B": 60.5,
}
"""Operations of a layer in a decode step of sixteen rows, the mean over all kinds of layers that
the model has, with our kernels. Recurrences are the library's, in operations of torch."""


@cache
def whole(name):
    """All of a hybrid's miniature as one stage: head and tail."""
    layers = layers_of(name, 0)
    return with_kernel(fused_stage(name, range(layers), layers))


@pytest.mark.parametrize("name", swept(HYBRIDS, *KINDS))
def test_a_step_reads_once_and_sends_once(name, counting):
    stage = whole(name)
    steps = [lambda at=at: decode(stage, 3, at) for at in (5, 6, 7)]
    for step in (lambda: prompts(stage, 3, 5), *steps):
        with HostReads() as reads:
            step()
        assert len(reads.places) == 1 and "device/transfers.py" in reads.places[0]
    assert stage.fallbacks.fusion is None
    latent = 1 if stage.fallbacks.attention else 0
    assert len(reads.sent) == 1 + latent, "latent rows are torch's, which sends a step's rows apart"


@pytest.mark.parametrize("name", swept(HYBRIDS, *KINDS))
def test_a_layer_launches_no_more_than_its_ceiling(name, counting):
    stage, seen = whole(name), []
    _, layers = decoder_layers(stage.model)
    handles = [
        layers[0].register_forward_pre_hook(lambda *_: seen.append(counting.total)),
        layers[-1].register_forward_hook(lambda *_: seen.append(counting.total)),
    ]
    with HostReads():
        prompts(stage, ROWS, TOKENS)
        seen.clear()
        with counting:
            decode(stage, ROWS, TOKENS)
    for handle in handles:
        handle.remove()
    found = (seen[1] - seen[0]) / len(layers)
    assert 10 < found <= CEILINGS[name]
