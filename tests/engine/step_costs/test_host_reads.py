"""No stage reads numbers of its device in a step, but the tail once, after sampling."""

from dataclasses import replace

import pytest
import torch

from tests.engine.step_costs.dispatched import HostReads
from tests.engine.step_costs.meta_stages import (
    SAMPLED,
    decode,
    fused_stage,
    meta_stage,
    prompts,
    with_kernel,
)
from tests.engine.tiny_models import ARCHITECTURES, KINDS

LAYERS = 6
SCORED = replace(SAMPLED, prompt_logprobs=2)
PARTS = {"head": range(2), "middle": range(2, 4), "tail": range(4, LAYERS)}
READS = {"head": 0, "middle": 0, "tail": 1}

WHOLE = ("llama", "gpt_oss", "gemma4_text")
"""Those whose heads and middles are tried with every `make test`, beside the tails of all kinds."""

NAMES_AND_PLACES = [
    pytest.param(
        *(name, place),
        marks=() if name in KINDS and (place == "tail" or name in WHOLE) else pytest.mark.sweeps,
    )
    for name in ARCHITECTURES
    for place in PARTS
]


@pytest.mark.parametrize("name, place", NAMES_AND_PLACES)
def test_a_step_reads_at_most_once(name, place):
    stage = meta_stage(name, PARTS[place], LAYERS)
    for step in (lambda: prompts(stage, 3, 20), lambda: decode(stage, 3, 20)):
        with HostReads() as reads:
            output = step()
        assert len(reads.places) == READS[place], reads.places
        assert all("device/transfers.py" in where for where in reads.places)
        assert len(output.drawn) == (3 if place == "tail" else 0)


@pytest.mark.parametrize("name, place", NAMES_AND_PLACES)
def test_so_does_one_that_is_rewritten_for_a_card(name, place, counting):
    """With every kernel of ours, whose launches read nothing that torch does not hand them. A
    decode step sends its numbers at once: tiles of attention are those that the step before asked
    for."""
    stage = with_kernel(fused_stage(name, PARTS[place], LAYERS))
    steps = [lambda at=at: decode(stage, 3, at) for at in (20, 21)]
    for step in (lambda: prompts(stage, 3, 20), *steps):
        with HostReads() as reads:
            output = step()
        assert len(reads.places) == READS[place], reads.places
        assert len(output.drawn) == (3 if place == "tail" else 0)
    assert stage.fallbacks.fusion is None and counting.total
    if stage.fallbacks.attention is None:
        assert len(reads.sent) == len(SENT[place])


def test_latent_attention_takes_prompts_of_one_token(counting):
    """As a stage computes where it loads: a row alone, whose one key is cheaply made from its
    latent row, and would then lie in no block."""
    stage = fused_stage("deepseek_v3", range(LAYERS), LAYERS)
    with HostReads():
        assert len(prompts(stage, 3, 1).drawn) == 3
    assert stage._pool.latents


SENT = {
    "head": ["on_host.to(device"],
    "middle": ["hidden_TD.to(self.device", "on_host.to(device"],
    "tail": ["hidden_TD.to(self.device", "on_host.to(device"],
}
"""Rows; and at once geometry, token ids, all other indices and what a tail is asked for."""


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma4_text"])
@pytest.mark.parametrize("place", PARTS)
def test_a_step_sends_all_but_rows_at_once(name, place, monkeypatch):
    stage = meta_stage(name, PARTS[place], LAYERS)
    for function in ("tensor", "as_tensor"):  # Torch gives them a meta tensor without a copy.
        monkeypatch.delattr(torch, function)
    with HostReads() as reads:
        prompts(stage, 3, 20, SCORED)
    places = [where.partition(": ")[2] for where in reads.sent]
    assert len(places) == len(SENT[place])
    assert all(text in where for text, where in zip(SENT[place], places, strict=True))


def test_a_read_is_seen_where_it_happens():
    rows = torch.zeros(3, device="meta")
    with torch.inference_mode(), HostReads() as reads:
        assert rows.sum().item() == 0.0
        assert rows.tolist() == [0.0] * 3
        assert 3 not in rows
    assert len(reads.places) == 3
    assert all("test_host_reads.py" in place for place in reads.places)
    assert ".item()" in reads.places[0] and ".tolist()" in reads.places[1]


def test_a_shape_that_follows_from_numbers_fails():
    with pytest.raises(NotImplementedError), HostReads():
        torch.zeros(3, device="meta").nonzero()
