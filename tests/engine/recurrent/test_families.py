"""Hybrid models pass the self-test, and no broken handling of their states does."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.layer_sizes import planned_model
from molink.checkpoint.model_config import model_shape, shape_of_config
from molink.checkpoint.stage_size import stage_size
from molink.engine.device.devices import STATE_SLOTS_MAX
from molink.engine.layers import finding_mixers as finding
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.loading import load_stage
from molink.engine.memory.state_pool import StatePool
from molink.engine.self_test.self_test import check_architecture
from molink.errors import UnsupportedModelError
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import DRAFTS_MAX
from molink_scheduler.placement import Goal, Network, NodeFacts, forecast
from tests.engine.recurrent.hybrids import HYBRIDS, KINDS, published_config, small_model
from tests.engine.ring_driver import load_stages
from tests.sweeps import crossed, swept

DESCRIPTION = ModelDescription("m", Path(), "m", 4, 64, 128, 4096, (), "float32")


def check(name: str) -> None:
    check_architecture(published_config(name), DESCRIPTION)


@pytest.mark.parametrize("name", swept(HYBRIDS, *KINDS))
def test_published_settings_are_served(name):
    check(name)


def broken_load(monkeypatch, kind: str, breaks) -> None:
    plain = StatePool.load

    def load(self, layer, states_count, slots):
        cached = plain(self, layer, states_count, slots)
        for state in getattr(cached, f"{kind}_states").values():
            if state is not None:
                breaks(state)
        return cached

    monkeypatch.setattr(StatePool, "load", load)


def state_zeroed(monkeypatch) -> None:
    broken_load(monkeypatch, "recurrent", torch.Tensor.zero_)


def convolution_zeroed(monkeypatch) -> None:
    broken_load(monkeypatch, "conv", torch.Tensor.zero_)


def oldest_column_lost(monkeypatch) -> None:
    # The library keeps as many columns as the kernel is wide: the first is not read any more.
    broken_load(monkeypatch, "conv", lambda state: state[..., 1].zero_())


def slots_swapped(monkeypatch) -> None:
    plain = StatePool.store

    def store(self, layer, cached, slots):
        plain(self, layer, cached, list(slots)[::-1])

    monkeypatch.setattr(StatePool, "store", store)


def decode_not_stored(monkeypatch) -> None:
    plain = StatePool.store

    def store(self, layer, cached, slots):
        if len(slots) == 1:
            plain(self, layer, cached, slots)

    monkeypatch.setattr(StatePool, "store", store)


def always_continues(monkeypatch) -> None:
    monkeypatch.setattr(finding, "_reads_state", lambda *_: True)


MUTANTS = (state_zeroed, convolution_zeroed, oldest_column_lost, slots_swapped, decode_not_stored)


@pytest.mark.parametrize("mutant, name", crossed(MUTANTS, KINDS))
def test_broken_states_are_refused(mutant, name, monkeypatch):
    if mutant is state_zeroed and name == "LFM2 1.2B":
        pytest.skip("it has no recurrent state")
    mutant(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        check(name)


def test_a_scan_that_starts_anew_in_mid_prompt_is_refused(monkeypatch):
    """Mamba-1, were its second span taken for a continuation of the first."""
    always_continues(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        check("Jamba 3B")


def test_a_package_of_gpu_kernels_is_not_called_on_a_cpu(monkeypatch):
    """As soon as it can be imported, the library calls it whatever the device."""

    def kernel(*_, **__):
        raise RuntimeError("a Triton kernel was called with tensors on a CPU")

    plain = modeling_qwen3_5.torch_chunk_gated_delta_rule.__wrapped__
    kernel.__wrapped__ = plain
    kernel.__module__ = modeling_qwen3_5.__name__
    monkeypatch.setattr(modeling_qwen3_5, "torch_chunk_gated_delta_rule", kernel)
    check("Qwen3.5 27B")


def test_time_steps_are_not_clamped_in_prefill_alone():
    module = torch.nn.Linear(1, 1)
    module.time_step_limit = (0.001, float("inf"))
    settle_mixers(module)
    assert module.time_step_limit == (0.0, float("inf"))


STATE_MEGABYTES = {
    "Qwen3.5 27B": (154.9, 7.86),
    "Qwen3.5 35B-A3B": (64.9, 1.97),
    "Qwen3-Next 80B-A3B": (77.9, 2.36),
    "Granite 4.0 H Tiny": (57.6, 1.77),
    "Falcon-H1 7B": (139.7, 4.33),
    "Nemotron 3 Nano 30B-A3B": (49.4, 1.98),
    "LFM2 1.2B": (0.123, 0.655),
}
"""States of a request, and inputs of mixers for 16 drafts."""


@pytest.mark.parametrize("name", STATE_MEGABYTES)
def test_plans_count_a_requests_states(name, tmp_path):
    published_config(name).save_pretrained(tmp_path)
    shape = model_shape(tmp_path)
    states, drafts = STATE_MEGABYTES[name]
    assert sum(shape.cost.kept_of_request) / 1e6 == pytest.approx(states + drafts, rel=3e-3)
    rows = DRAFTS_MAX * shape.hidden_size * shape.dtype_bytes * sum(shape.recurs)
    assert rows / 1e6 == pytest.approx(drafts, rel=1e-2)


CUTS = (0, 1, 3)
"""Uneven stages: of a state alone, of more; the rest is the third."""


@pytest.mark.parametrize(
    ("dtype", "size"), [pytest.param("float32", 4, marks=pytest.mark.sweeps), ("bfloat16", 2)]
)
@pytest.mark.parametrize("name", swept(HYBRIDS, *KINDS))
def test_plans_count_what_a_stage_keeps_of_a_request(name, dtype, size, tmp_path):
    """Byte for byte in each stage: states of a request, and KV of a token."""
    whole = small_model(name)
    whole.save_pretrained(tmp_path)
    cuts = (*CUTS, whole.config.num_hidden_layers)
    cost = planned_model(str(tmp_path)).costs[size]
    for stage, layers in zip(load_stages(tmp_path, cuts, dtype), pairwise(cuts), strict=True):
        counted = stage_size(tmp_path, layers)
        state_bytes = sum(cost.kept_of_request[slice(*layers)])
        token_bytes = sum(cost.kept_of_token[slice(*layers)])
        assert (state_bytes, token_bytes) == (stage.states.request_bytes, stage.kv_token_bytes)
        assert counted.state.bytes_in(size) == state_bytes
        assert counted.held_bytes(size, 3) - counted.held_bytes(size, 2) == token_bytes


def test_kimi_linear_says_its_sizes_in_an_entry_of_its_own():
    """As moonshotai/Kimi-Linear-48B-A3B publishes them; layers are counted from one there."""
    config = published_config("Kimi-Linear 48B-A3B").to_dict()
    attending = [4, 8, 12, 16, 20, 24, 27]
    kinds = ["full_attention" if n + 1 in attending else "linear_attention" for n in range(27)]
    translated = shape_of_config("kimi", config | {"layer_types": kinds})
    for name in ("layer_types", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"):
        config.pop(name)
    config["linear_attn_config"] = {
        "full_attn_layers": attending,
        "kda_layers": [n for n in range(1, 28) if n not in attending],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    }
    published = shape_of_config("kimi", config)
    assert published == translated
    drafts = DRAFTS_MAX * published.hidden_size
    assert sum(published.layer_state_bytes) == 20 * (
        32 * 128 * 128 * 4 + (3 * 32 * 128 * 4 + drafts) * 2
    )


@pytest.mark.parametrize("name", KINDS)
def test_stages_give_what_a_plan_has_counted(name, tmp_path):
    """So many tokens of KV and states of so many requests, in memory that is just lent: a quarter
    of 20 states is for snapshots."""
    small_model(name).save_pretrained(tmp_path)
    cost = planned_model(str(tmp_path)).costs[4]
    lent_bytes = cost.stage_bytes(0, cost.layers) + 20 * sum(cost.kept_of_request) + 2**20
    node = NodeFacts("pc", lent_bytes, 1e-3, 1e-4, 1e-4)
    (planned,) = forecast(cost, [node], [cost.layers], Network(), Goal(context_tokens=64)).stages
    work = StageWork(planned.layers, "cpu", "float32", planned.kv_tokens)
    stage = load_stage(str(tmp_path), work, memory_bytes=lent_bytes, self_test=False)
    assert 15 <= planned.state_slots <= STATE_SLOTS_MAX
    assert stage.state_slots == pytest.approx(planned.state_slots, abs=1)
    assert stage.kv.tokens_capacity >= planned.kv_tokens
