"""Hybrid models pass the self-test, and no broken handling of their states does."""

from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.mixers import STATE_CONTEXT_TOKENS
from molink.checkpoint.model_config import model_shape
from molink.errors import UnsupportedModelError
from molink.executor.architecture.self_test import check_architecture
from molink.executor.recurrent import finding
from molink.executor.recurrent.library_mixers import settle_mixers
from molink.executor.recurrent.state_pool import StatePool
from tests.executor.recurrent.hybrids import HYBRIDS, published_config, small_hybrid
from tests.executor.ring_driver import load_stages

DESCRIPTION = ModelDescription("m", Path(), "m", 4, 64, 128, 4096, (), "float32")

KINDS = ("Qwen3.5-27B", "granite-4.0-h-tiny", "Jamba-3B", "LFM2-1.2B")
"""The delta rule, Mamba-2, Mamba-1, a short convolution."""


def check(name: str) -> None:
    check_architecture(published_config(name), DESCRIPTION)


@pytest.mark.parametrize("name", HYBRIDS)
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
    swapped = lambda self, layer, cached, slots: plain(self, layer, cached, slots[::-1])  # noqa: E731
    monkeypatch.setattr(StatePool, "store", swapped)


def decode_not_stored(monkeypatch) -> None:
    plain = StatePool.store

    def store(self, layer, cached, slots):
        if len(slots) == 1:
            plain(self, layer, cached, slots)

    monkeypatch.setattr(StatePool, "store", store)


def always_continues(monkeypatch) -> None:
    monkeypatch.setattr(finding, "_reads_state", lambda *_: True)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "mutant",
    [state_zeroed, convolution_zeroed, oldest_column_lost, slots_swapped, decode_not_stored],
)
def test_broken_states_are_refused(name, mutant, monkeypatch):
    if mutant is state_zeroed and name == "LFM2-1.2B":
        pytest.skip("it has no recurrent state")
    mutant(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        check(name)


def test_a_scan_that_starts_anew_in_mid_prompt_is_refused(monkeypatch):
    """Mamba-1, were its second span taken for a continuation of the first."""
    always_continues(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        check("Jamba-3B")


def test_a_package_of_gpu_kernels_is_not_called_on_a_cpu(monkeypatch):
    """As soon as it can be imported, the library calls it whatever the device."""

    def kernel(*_, **__):
        raise RuntimeError("a Triton kernel was called with tensors on a CPU")

    plain = modeling_qwen3_5.torch_chunk_gated_delta_rule.__wrapped__
    kernel.__wrapped__ = plain
    kernel.__module__ = modeling_qwen3_5.__name__
    monkeypatch.setattr(modeling_qwen3_5, "torch_chunk_gated_delta_rule", kernel)
    check("Qwen3.5-27B")


def test_time_steps_are_not_clamped_in_prefill_alone():
    module = torch.nn.Linear(1, 1)
    module.time_step_limit = (0.001, float("inf"))
    settle_mixers(module)
    assert module.time_step_limit == (0.0, float("inf"))


STATE_MEGABYTES = {
    "Qwen3.5-27B": 154.9,
    "Qwen3.5-35B-A3B": 64.9,
    "Qwen3-Next-80B-A3B": 77.9,
    "granite-4.0-h-tiny": 57.6,
    "Falcon-H1-7B": 139.7,
    "Nemotron-3-Nano-30B-A3B": 49.4,
    "LFM2-1.2B": 0.12,
}


@pytest.mark.parametrize("name", STATE_MEGABYTES)
def test_plans_count_a_requests_states(name, tmp_path):
    published_config(name).save_pretrained(tmp_path)
    shape = model_shape(tmp_path)
    assert shape.layers * shape.state_bytes / 1e6 == pytest.approx(STATE_MEGABYTES[name], rel=3e-2)
    assert shape.cost.kv_bytes >= shape.kv_token_bytes + shape.state_bytes // STATE_CONTEXT_TOKENS


@pytest.mark.parametrize("name", HYBRIDS)
def test_plans_count_what_mixers_store(name, tmp_path):
    """In miniature and in fp32, where a convolution's numbers take four bytes, not two."""
    whole = small_hybrid(name)
    whole.save_pretrained(tmp_path)
    (stage,) = load_stages(tmp_path, (0, whole.config.num_hidden_layers))
    counted = model_shape(tmp_path).state_bytes * whole.config.num_hidden_layers
    assert counted <= 1.01 * stage.states.request_bytes + 8
    assert counted >= 0.5 * stage.states.request_bytes
