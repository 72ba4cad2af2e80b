import pytest
import torch

from molink.checkpoint.stage_size import KV_TOKENS_MIN
from molink.engine.device import devices
from molink.engine.device.devices import (
    KV_SHARE_OF_FREE_TOGETHER,
    KV_TOKENS_MAX,
    STATE_SLOTS_MAX,
    choose_device,
    choose_dtype,
    memory_budget_bytes,
    propose_kv_tokens,
    propose_state_slots,
)
from molink.errors import UserError
from molink_scheduler.kv.layer_class import CONVERSATION_TOKENS
from tests.engine.device.stand_in import StandInCard

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture
def card(monkeypatch):
    """A card that torch sees as cuda:0."""
    stand_in = StandInCard()
    monkeypatch.setattr(devices, "Card", lambda device: stand_in)
    return stand_in


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


def test_a_gpu_keeps_the_checkpoint_s_16_bit_type(card):
    assert choose_dtype("auto", CUDA, "float16") is torch.float16
    assert choose_dtype("auto", CUDA, "bfloat16") is torch.bfloat16
    assert choose_dtype("bfloat16", CUDA, "float16") is torch.bfloat16


def test_a_gpu_without_bfloat16_takes_fp16_and_refuses_to_emulate(card):
    card.multiplies_bfloat16 = False  # An RTX 20: torch would emulate it.
    assert choose_dtype("auto", CUDA, "bfloat16") is torch.float16
    assert choose_dtype("float32", CUDA, "bfloat16") is torch.float32
    with pytest.raises(UserError, match="no bfloat16, only emulated: use --dtype auto"):
        choose_dtype("bfloat16", CUDA, "bfloat16")


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_a_card_that_torch_has_code_for_is_taken(card, capability):
    card.capability = capability
    assert choose_device("cuda") == choose_device("cuda:0") == CUDA
    assert card.is_selected, "Triton launches on the process's own card, whatever its tensors say"


@pytest.mark.parametrize(
    ("capability", "driver", "architectures", "remedy"),
    [
        ((12, 0), 575, ("sm_50", "sm_86", "sm_90"), "update the NVIDIA driver to 580 or newer"),
        ((12, 0), 580, ("sm_50", "sm_86", "sm_90"), "install torch's build for CUDA 13"),
        ((12, 0), None, ("sm_50", "sm_86", "sm_90"), "install torch's build for CUDA 13"),
        ((6, 1), 580, ("sm_75", "sm_120", "compute_120"), "build for CUDA 12.6"),
        ((7, 5), 470, (), "update the NVIDIA driver to 525 or newer"),
        ((3, 5), 470, ("sm_75",), "no build of torch has any: use --device cpu"),
    ],
)
def test_a_card_without_code_is_refused_with_what_to_install(
    card, capability, driver, architectures, remedy
):
    card.capability, card.driver, card.architectures = capability, driver, architectures
    with pytest.raises(UserError) as refused:
        choose_device("cuda:0")
    assert f"compute capability {capability[0]}.{capability[1]}" in str(refused.value)
    assert remedy in str(refused.value)


def test_a_card_that_does_not_compute_is_refused_in_torch_s_words(card):
    card.step_error = "CUDA error: unspecified launch failure"
    with pytest.raises(UserError, match="unspecified launch failure; restart the PC"):
        choose_device("cuda:0")


def test_why_torch_sees_no_card_is_told(card):
    card.count, card.why_none = 0, "The NVIDIA driver on your system is too old"
    with pytest.raises(UserError, match=r"sees 0 GPUs \(The NVIDIA driver .* too old\); use --dev"):
        choose_device("cuda:0")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_cpu_uses_bfloat16_only_where_it_multiplies_it(monkeypatch, has_bf16):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16})
    wanted = torch.bfloat16 if has_bf16 else torch.float32
    assert choose_dtype("auto", CPU, "float16") is wanted


def test_a_named_dtype_is_taken_and_an_unknown_one_refused():
    assert choose_dtype("float16", CPU, "bfloat16") is torch.float16
    with pytest.raises(UserError, match="int8"):
        choose_dtype("int8", CPU, "bfloat16")


def proposed_tokens(token_bytes: int, free_bytes: int, stages: int = 1) -> int:
    return propose_kv_tokens(token_bytes, memory_budget_bytes(free_bytes, stages))


def test_the_proposal_stays_within_its_limits():
    assert proposed_tokens(1, 10**12) == KV_TOKENS_MAX
    assert proposed_tokens(10**6, 10**6) == KV_TOKENS_MIN
    tokens = proposed_tokens(100_000, 4_000_000_000)
    assert tokens % 16 == 0
    assert tokens * 100_000 < 4_000_000_000


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 64])
def test_stages_on_one_pc_share_its_memory(stages):
    token_bytes, free_bytes = 1_000_000, 10**12
    together = stages * proposed_tokens(token_bytes, free_bytes, stages) * token_bytes
    assert together <= KV_SHARE_OF_FREE_TOGETHER * free_bytes


def test_up_to_three_stages_on_a_cpu_take_what_one_does():
    alone = proposed_tokens(1_000_000, 10**11)
    assert alone == 24_992
    assert [proposed_tokens(1_000_000, 10**11, n) for n in (2, 3)] == [alone, alone]
    assert proposed_tokens(1_000_000, 10**11, 6) == 12_496


STATE_BYTES, TOKEN_BYTES, BUDGET_BYTES = 50_000_000, 20_000, 4_000_000_000


def test_states_and_kv_fit_into_the_budget_together():
    slots = propose_state_slots(STATE_BYTES, TOKEN_BYTES, None, BUDGET_BYTES)
    tokens = propose_kv_tokens(TOKEN_BYTES, BUDGET_BYTES - slots * STATE_BYTES)
    assert slots == 30  # 50 MB and 4,096 tokens each
    assert tokens >= slots * CONVERSATION_TOKENS - 16
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
