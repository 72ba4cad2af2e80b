"""Step times by the format of weights: measured, and by bytes with a correction."""

from dataclasses import replace
from typing import get_args

import pytest

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import PLAIN, WeightBits, WeightFormat
from molink.hardware.format_times import (
    CARD_CORRECTIONS,
    CPU_CORRECTIONS,
    FormatTimes,
)
from molink.hardware.gpu import gpu, measured_device
from molink.hardware.roofline import estimated_times, stage_cost
from molink_scheduler.batch import BatchClass

INT4 = WeightBits(4, 2 / 128, "int4_g128")
FP8 = WeightBits(8, 1 / 128, "fp8")
PLAIN_TIMES, INT4_TIMES = FormatTimes(0.05, 0.01), FormatTimes(0.02, 0.03)
MODEL = model_shape("llama-3-8b")
FOUR_BITS = replace(MODEL, weights=INT4, attention_weights=INT4)


def test_every_format_has_a_correction():
    assert set(CPU_CORRECTIONS) == set(CARD_CORRECTIONS) == set(get_args(WeightFormat))


def test_what_was_measured_counts_and_the_rest_by_bytes_with_its_correction():
    device = replace(gpu("cpu"), formats={"plain": PLAIN_TIMES, "int4_g128": INT4_TIMES})
    assert device.format_times(INT4, 2) == INT4_TIMES
    assert device.format_times(PLAIN, 2) == PLAIN_TIMES
    eight = device.format_times(WeightBits(8, 0.0, "int8"), 2)
    assert eight.read_s == pytest.approx(0.05 / 2 * CPU_CORRECTIONS["int8"].read)
    assert eight.row_s == pytest.approx(0.01 * CPU_CORRECTIONS["int8"].row)


def test_a_card_without_a_kernel_unpacks_for_each_product():
    card = gpu("rtx3090")
    plain, eight = card.format_times(PLAIN, 2), card.format_times(FP8, 2)
    assert eight.read_s == pytest.approx(plain.read_s * (1 + 2 / 128 + 4) / 2)
    assert eight.row_s == plain.row_s


def test_a_measured_device_times_a_layer_as_its_products_take():
    """Llama 3 8B has 218 million weights in a layer: in four bits a row takes 0.218 x 20 ms to
    read, and each of many 0.218 x 30 ms to multiply, although plain weights multiply faster."""
    formats = {"plain": PLAIN_TIMES, "int4_g128": INT4_TIMES}
    device = measured_device("cpu", formats, 2)
    cost = stage_cost(FOUR_BITS, device, 1)
    weights = MODEL.layer_parameters / 1e9
    assert cost.dense_weights_s + cost.expert_weights_s == pytest.approx(weights * 0.02)
    assert cost.row_flops_s == pytest.approx(weights * 0.03)
    four, plain = (estimated_times(shape, device, 128) for shape in (FOUR_BITS, MODEL))
    assert four.decode_fixed_s < plain.decode_fixed_s
    assert four.prefill_row_s > 2 * plain.prefill_row_s
    one = stage_cost(MODEL, device, 1).parts(BatchClass.DECODE, 1, 1, 1)
    assert one.weights_s == pytest.approx(weights * 0.05)


def test_without_plain_weights_there_is_no_device():
    assert measured_device("cpu", {"int4_g128": INT4_TIMES}, 2) is None
    assert measured_device("cuda", {"plain": FormatTimes(0.0, 1.0)}, 2) is None


def test_experts_and_attention_count_in_their_own_formats():
    shape = replace(
        model_shape("mixtral-8x7b"), weights=WeightBits(4, 1 / 32, "mxfp4"), attention_weights=PLAIN
    )
    formats = {"plain": PLAIN_TIMES, "mxfp4": FormatTimes(0.01, 0.04)}
    cost = stage_cost(shape, measured_device("cuda", formats, 2), 1)
    plain = (shape.attention_parameters + shape.router_parameters) / 1e9
    assert cost.dense_weights_s == pytest.approx(plain * 0.05)
    assert cost.expert_weights_s == pytest.approx(shape.expert_parameters / 1e9 * 0.01)
    experts = 2 * shape.expert_parameters / 1e9
    assert cost.row_flops_s == pytest.approx(plain * 0.01 + experts * 0.04)
