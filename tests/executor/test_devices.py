import pytest
import torch

from molink.errors import UserError
from molink.executor.devices import (
    KV_SHARE_OF_FREE_TOGETHER,
    KV_TOKENS_MAX,
    KV_TOKENS_MIN,
    choose_device,
    choose_dtype,
    propose_kv_tokens,
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_proposal_stays_within_its_limits(device):
    assert propose_kv_tokens(1, 10**12, device) == KV_TOKENS_MAX
    assert propose_kv_tokens(10**6, 10**6, device) == KV_TOKENS_MIN
    tokens = propose_kv_tokens(100_000, 4_000_000_000, device)
    assert tokens % 16 == 0
    assert tokens * 100_000 < 4_000_000_000


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 64])
def test_stages_on_one_pc_share_its_memory(device, stages):
    token_bytes, free_bytes = 1_000_000, 10**12
    together = stages * propose_kv_tokens(token_bytes, free_bytes, device, stages) * token_bytes
    assert together <= KV_SHARE_OF_FREE_TOGETHER[device] * free_bytes


def test_up_to_three_stages_on_a_cpu_take_what_one_does():
    alone = propose_kv_tokens(1_000_000, 10**11, "cpu")
    assert alone == 24_992
    assert [propose_kv_tokens(1_000_000, 10**11, "cpu", n) for n in (2, 3)] == [alone, alone]
    assert propose_kv_tokens(1_000_000, 10**11, "cpu", 6) == 12_496
