import pytest
import torch

from molink.errors import UserError
from molink.executor.devices import choose_device, choose_dtype

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
