"""Hybrid models pass the self-test, and no broken handling of their states does."""

from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

from molink.checkpoint.description import ModelDescription
from molink.errors import UnsupportedModelError
from molink.executor.architecture.self_test import check_architecture
from molink.executor.recurrent import finding
from molink.executor.recurrent.library_mixers import settle_mixers
from molink.executor.recurrent.state_pool import StatePool
from tests.executor.recurrent.hybrids import HYBRIDS, published_config

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
