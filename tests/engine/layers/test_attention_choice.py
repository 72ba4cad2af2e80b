"""A card's kernel computes a layer only once it has given the same numbers as torch there; else
torch does, and why is told."""

import logging
from dataclasses import dataclass

import pytest
import torch

from molink.engine.device import fallbacks
from molink.engine.layers import attention_choice
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.kv_rows import KvRows, quantize
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, save_tiny

CPU = torch.device("cpu")
PLAIN = AttentionVariant(0.125)
CAPPED = AttentionVariant(0.125, 5.0, torch.zeros(4))


@dataclass(frozen=True)
class Attended:
    out_THV: torch.Tensor
    log_sums_TH: torch.Tensor | None = None


class Kernels:
    """Stand in for the kernels: torch's own attention of each span, and a fault."""

    def __init__(self, fault=0.0, of_log_sums=0.0):
        self.fault, self.of_log_sums = fault, of_log_sums
        self.calls = []

    def attend(self, q_THA, layer, batch, window, variant, log_sums=False):
        self.calls.append((q_THA.dtype, layer.keys.rows_SKA.dtype, window, variant.softcap))
        if isinstance(self.fault, Exception):
            raise self.fault
        wide = LayerKv(*(KvRows(r.numbers(torch.float32)) for r in (layer.keys, layer.values)))
        pool = KvPool(attention_choice.PROBE_SLOTS)
        rows = LayerRows(batch, pool, wide, q_THA.float(), window, variant)
        out_THV, sums_TH = rows.attend_part() if log_sums else (rows.attend(), None)
        out_THV = (out_THV + self.fault).to(q_THA.dtype)
        return Attended(out_THV, sums_TH if sums_TH is None else sums_TH + self.of_log_sums)


def layer(key_size=64, dtype=torch.bfloat16, int8=False):
    numbers = torch.zeros(16, 2, key_size, dtype=dtype)
    rows = KvRows(*quantize(numbers)) if int8 else KvRows(numbers)
    return LayerKv(rows, rows)


def query(heads=4, key_size=64, dtype=torch.bfloat16):
    return torch.zeros(1, heads, key_size, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(("window", "variant"), [(None, PLAIN), (9, CAPPED)])
def test_kernels_that_agree_are_used(dtype, int8, window, variant):
    kernels = Kernels()
    choice = AttentionChoice(CPU, kernels)
    chosen = choice.kernels_for(query(dtype=dtype), layer(64, dtype, int8), window, variant)
    assert chosen is kernels and choice.fallback is None


def test_each_kind_of_layer_is_tried_once():
    kernels = Kernels()
    choice = AttentionChoice(CPU, kernels)
    for window in (None, 7, None, 9):
        choice.kernels_for(query(), layer(), window, PLAIN)
    assert len(kernels.calls) == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (4.0, "the kernel is off by 4.9e+01 of row 0, the library's by 0.0e+00 on this card"),
        (float("nan"), "the kernel is off by nan of row 0, the library's by 0.0e+00 on this card"),
        (
            RuntimeError("Failed to find C compiler.\nPlease specify \x1b[31mCC"),
            "RuntimeError: Failed to find C compiler.",
        ),
        (OSError("\x1b]0;title\x07\u200b" + 400 * "x"), None),
    ],
)
def test_others_are_not_and_why_is_told(fault, reason, caplog):
    choice = AttentionChoice(CPU, Kernels(fault))
    with caplog.at_level(logging.WARNING):
        assert choice.kernels_for(query(), layer(), None, PLAIN) is None
        assert choice.kernels_for(query(), layer(), None, PLAIN) is None
    assert reason is None or choice.fallback == reason
    assert len(choice.fallback) <= fallbacks.LINE_CHARACTERS_MAX
    assert choice.fallback.isprintable() and len(caplog.records) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sum_exps_are_tried_where_parts_want_them(dtype):
    """And by these the parts of a kernel are left to torch, while it computes the layer."""
    for of_log_sums in (0.0, 0.05, float("nan")):
        kernels = Kernels(of_log_sums=of_log_sums)
        choice, asked = AttentionChoice(CPU, kernels), (query(dtype=dtype), layer(64, dtype), 9)
        assert choice.kernels_for(*asked, PLAIN) is kernels
        chosen = choice.kernels_for(*asked, PLAIN, is_part=True)
        assert (chosen is kernels) == (of_log_sums == 0.0)


def test_one_kind_that_fails_leaves_the_others():
    kernels = Kernels()
    choice = AttentionChoice(CPU, kernels)
    assert choice.kernels_for(query(key_size=512), layer(512), None, PLAIN) is None
    assert choice.kernels_for(query(), layer(), None, PLAIN) is kernels
    assert choice.fallback == "heads of 512 are over 256"


def test_a_group_of_many_heads_is_left_to_torch():
    choice = AttentionChoice(CPU, Kernels())
    assert choice.kernels_for(query(heads=142), layer(), None, PLAIN) is None
    assert choice.fallback == "71 query heads share a kv head, over 64"


def test_a_cpu_asks_for_no_kernel():
    choice = AttentionChoice.on(CPU)
    assert choice.kernels is None and choice.fallback is None


def test_old_cards_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    choice = AttentionChoice.on(torch.device("cuda:0"))
    assert choice.kernels_for(query(), layer(), None, PLAIN) is None
    assert choice.fallback == choice.fusion_fallback == "Triton multiplies no matrices on sm_75"


def test_without_triton_torch_computes(monkeypatch):
    def missing():
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(attention_choice, "_kernels", missing)
    choice = AttentionChoice.on(torch.device("cuda:0"))
    told = "ModuleNotFoundError: No module named 'triton'"
    assert choice.fallback == choice.fusion_fallback == told
    assert choice.kernels is None


def test_a_layer_for_which_there_is_no_kernel_is_told_once(caplog):
    choice = AttentionChoice(CPU, Kernels())
    with caplog.at_level(logging.WARNING):
        choice.refuse("the kernel takes no latent rows")
        choice.refuse("the kernel takes no latent rows")
    assert choice.fallback == "the kernel takes no latent rows" and len(caplog.records) == 1
    on_cpu = AttentionChoice.on(CPU)
    on_cpu.refuse("the kernel takes no latent rows")
    assert on_cpu.fallback is None


def test_latent_layers_are_left_to_torch(tmp_path):
    save_tiny("deepseek_v3", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    job = Job(0, [3, 4, 5], 2)
    (wanted,) = RingDriver([stage]).run([job])
    stage.attention = AttentionChoice(CPU, Kernels())
    assert RingDriver([stage]).run([Job(1, [3, 4, 5], 2)]) == [wanted]
    assert stage.fallbacks.attention == "the kernel takes no latent rows"
