import pytest
import torch

from molink.errors import UserError
from molink.executor.devices import (
    KV_SHARE_OF_FREE_TOGETHER,
    KV_TOKENS_MAX,
    KV_TOKENS_MIN,
    STATE_CONTEXT_TOKENS,
    STATE_SLOTS_MAX,
    choose_device,
    choose_dtype,
    memory_budget_bytes,
    propose_kv_tokens,
    propose_state_slots,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "mps", "meta", ""])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(UserError, match="auto, cpu, cuda:N"):
        choose_device(name)


def test_an_absent_gpu_is_refused():
    with pytest.raises(UserError, match=r"no device cuda:97.*--device cpu"):
        choose_device("cuda:97")


def test_the_cpu_is_always_there():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda")


def test_a_gpu_keeps_the_checkpoint_s_16_bit_type():
    assert choose_dtype("auto", CUDA, "float16") is torch.float16
    assert choose_dtype("auto", CUDA, "bfloat16") is torch.bfloat16


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_cpu_uses_bfloat16_only_where_it_multiplies_it(monkeypatch, has_bf16):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16})
    wanted = torch.bfloat16 if has_bf16 else torch.float32
    assert choose_dtype("auto", CPU, "float16") is wanted


def test_a_named_dtype_is_taken_and_an_unknown_one_refused():
    assert choose_dtype("float16", CPU, "bfloat16") is torch.float16
    with pytest.raises(UserError, match="int8"):
        choose_dtype("int8", CPU, "bfloat16")


def proposed_tokens(token_bytes: int, free_bytes: int, device: str, stages: int = 1) -> int:
    return propose_kv_tokens(token_bytes, memory_budget_bytes(free_bytes, device, stages))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_proposal_stays_within_its_limits(device):
    assert proposed_tokens(1, 10**12, device) == KV_TOKENS_MAX
    assert proposed_tokens(10**6, 10**6, device) == KV_TOKENS_MIN
    tokens = proposed_tokens(100_000, 4_000_000_000, device)
    assert tokens % 16 == 0
    assert tokens * 100_000 < 4_000_000_000


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 64])
def test_stages_on_one_pc_share_its_memory(device, stages):
    token_bytes, free_bytes = 1_000_000, 10**12
    together = stages * proposed_tokens(token_bytes, free_bytes, device, stages) * token_bytes
    assert together <= KV_SHARE_OF_FREE_TOGETHER[device] * free_bytes


def test_up_to_three_stages_on_a_cpu_take_what_one_does():
    alone = proposed_tokens(1_000_000, 10**11, "cpu")
    assert alone == 24_992
    assert [proposed_tokens(1_000_000, 10**11, "cpu", n) for n in (2, 3)] == [alone, alone]
    assert proposed_tokens(1_000_000, 10**11, "cpu", 6) == 12_496


STATE_BYTES, TOKEN_BYTES, BUDGET_BYTES = 50_000_000, 20_000, 4_000_000_000


def test_states_and_kv_fit_into_the_budget_together():
    slots = propose_state_slots(STATE_BYTES, TOKEN_BYTES, None, BUDGET_BYTES)
    tokens = propose_kv_tokens(TOKEN_BYTES, BUDGET_BYTES - slots * STATE_BYTES)
    assert slots == 30  # 50 MB and 4,096 tokens each
    assert tokens >= slots * STATE_CONTEXT_TOKENS - 16
    assert slots * STATE_BYTES + tokens * TOKEN_BYTES <= BUDGET_BYTES


def test_states_take_what_wanted_kv_leaves():
    assert propose_state_slots(STATE_BYTES, TOKEN_BYTES, 150_000, BUDGET_BYTES) == 20
    assert propose_state_slots(STATE_BYTES, TOKEN_BYTES, 10**9, BUDGET_BYTES) == 1


def test_layers_of_states_only_offer_bounded_tokens_and_all_memory_for_states():
    assert propose_state_slots(STATE_BYTES, 0, None, BUDGET_BYTES) == 80
    assert propose_kv_tokens(0, 10**15) == KV_TOKENS_MAX


def test_slots_are_few_and_none_where_nothing_is_kept():
    assert propose_state_slots(1, 1, None, 10**15) == STATE_SLOTS_MAX
    assert propose_state_slots(0, 1, None, BUDGET_BYTES) is None
