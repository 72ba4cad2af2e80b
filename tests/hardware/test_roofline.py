"""The roofline against estimates of others, and what must hold whatever the numbers are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.checkpoint.model_config import known_models, model_shape
from molink.errors import UserError
from molink.hardware.gpu import gpu, known_gpus
from molink.hardware.roofline import stage_cost
from molink_scheduler.batch import BatchClass
from molink_sim.even_ring import kv_tokens

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


def decode_ms(cost, rows, context):
    return cost.step_s(DECODE, rows, rows * context, rows) * 1e3


@pytest.mark.parametrize("rows, expected_ms", [(1, 6.7), (8, 8.2), (32, 13.1), (64, 19.8)])
def test_decode_of_the_papers_stage_is_near_the_estimate_by_hand(rows, expected_ms):
    """A third of Qwen-7B on a 4090, context 900; the estimate spreads embedding and head over the
    three stages, so a middle stage lies below it and a tail above."""
    shape, device = model_shape("qwen-7b"), gpu("rtx4090")
    middle = decode_ms(stage_cost(shape, device, 11), rows, 900)
    tail = decode_ms(stage_cost(shape, device, 11, is_tail=True), rows, 900)
    assert middle == pytest.approx(expected_ms, rel=0.1)
    assert (middle + tail) / 2 == pytest.approx(expected_ms, rel=0.07)


def test_prefill_of_the_papers_mean_prompt_is_compute():
    """763 tokens through 11 layers: 3.4 TFLOP at about 105 TFLOP/s."""
    cost = stage_cost(model_shape("qwen-7b"), gpu("rtx4090"), 11)
    assert cost.step_s(PREFILL, 763, 763, 1) == pytest.approx(0.033, rel=0.1)
    parts = cost.parts(PREFILL, 763, 763, 1)
    assert parts.flops_s > 4 * parts.weights_s


def test_our_own_cpu_is_as_measured():
    """docs/benchmarks/ring.md: four layers, context about 100."""
    cost = stage_cost(model_shape("llama-88m"), gpu("cpu"), 4)
    assert 3.0 < decode_ms(cost, 1, 100) < 3.5
    assert 3.9 < decode_ms(cost, 8, 100) < 4.9
    assert cost.step_s(PREFILL, 128, 128, 1) == pytest.approx(0.037, rel=0.05)


@pytest.mark.parametrize(
    "model, device, expected_ms",
    [
        ("llama-30b", "a100", {2: 0.9, 100: 2.8, 300: 7}),
        ("llama-30b", "t4", {2: 4.7, 100: 14.6, 300: 37}),
        ("llama-30b", "l4", {2: 4.5, 100: 14.1, 300: 34}),
        ("llama-2-70b", "a100", {2: 1.4, 20: 1.5, 50: 1.7}),
        ("llama-2-70b", "t4", {2: 7.1, 20: 9.0, 100: 11.7}),
    ],
)
def test_one_decode_layer_as_helix_measured_it(model, device, expected_ms):
    """Its tables do not tell the context; 800 tokens explain them best."""
    cost = stage_cost(model_shape(model), gpu(device), 1)
    for rows, expected in expected_ms.items():
        layer_ms = decode_ms(cost, rows, 800) - cost_of_the_step_ms(device)
        assert layer_ms == pytest.approx(expected, rel=0.2), rows


def cost_of_the_step_ms(device):
    return gpu(device).step_overhead_s * 1e3


def test_the_parts_are_the_step():
    cost = stage_cost(model_shape("llama-3-8b"), gpu("rtx3090"), 8, is_tail=True)
    parts = cost.parts(DECODE, 4, 4000, 4)
    assert parts.total_s == cost.step_s(DECODE, 4, 4000, 4)
    assert parts.weights_s > parts.kv_s > parts.attention_flops_s > 0
    assert parts.output_s > 0 and parts.overhead_s > 0


def test_only_the_tail_computes_logits():
    shape, device = model_shape("llama-3-8b"), gpu("rtx3090")
    assert stage_cost(shape, device, 8, is_head=True) == stage_cost(shape, device, 8)
    tail = stage_cost(shape, device, 8, is_tail=True)
    assert tail.parts(DECODE, 1, 10, 1).output_s == pytest.approx(1.05e9 / 730e9, rel=0.01)


def test_one_row_of_a_mixture_reads_the_experts_that_it_chooses():
    shape, device = model_shape("mixtral-8x7b"), gpu("a100-80gb")
    few = stage_cost(shape, device, 4).parts(DECODE, 1, 1, 1).weights_s
    many = stage_cost(shape, device, 4).parts(DECODE, 100, 100, 100).weights_s
    assert 3.5 < many / few < 4


models = st.sampled_from(known_models()).map(model_shape)
devices = st.sampled_from(known_gpus()).map(gpu)
classes = st.sampled_from([DECODE, PREFILL])


@given(models, devices, classes, st.integers(1, 600), st.integers(0, 5000), st.integers(1, 10))
def test_more_work_never_takes_less_time(shape, device, batch_class, rows, before, layers):
    cost = stage_cost(shape, device, layers)
    base = cost.step_s(batch_class, rows, rows + before, 1)
    assert 0 < base < cost.step_s(batch_class, rows + 1, rows + 1 + before, 1)
    assert base < cost.step_s(batch_class, rows, rows + before + 1, 1) or batch_class is PREFILL
    assert base < stage_cost(shape, device, layers + 1).step_s(batch_class, rows, rows + before, 1)


@given(models, devices, st.integers(1, 300))
def test_prefill_in_one_span_is_no_slower_than_in_two(shape, device, half):
    cost = stage_cost(shape, device, 2)
    first = cost.step_s(PREFILL, half, half, 1)
    second = cost.step_s(PREFILL, half, 2 * half, 1)
    assert cost.step_s(PREFILL, 2 * half, 2 * half, 1) <= (first + second) * (1 + 1e-9)


def test_memory_left_for_kv_on_the_papers_stage():
    shape, device = model_shape("qwen-7b"), gpu("rtx4090")
    tokens = kv_tokens(shape, device, 11)
    used = tokens * 11 * shape.kv_token_bytes + 11 * shape.layer_bytes
    assert used <= 0.9 * 24 * 2**30 < used + 11 * shape.kv_token_bytes
    assert kv_tokens(shape, device, 11, is_tail=True) < tokens


def test_a_stage_that_does_not_fit_says_how_much_is_missing():
    with pytest.raises(UserError, match=r"GB are\s+missing"):
        kv_tokens(model_shape("llama-2-70b"), gpu("rtx3060"), 8)


@pytest.mark.parametrize("layers", [0, -1, 33])
def test_layers_that_the_model_has_not_are_refused(layers):
    with pytest.raises(UserError, match="1 to 32 layers"):
        stage_cost(model_shape("qwen-7b"), gpu("rtx4090"), layers)


@pytest.mark.parametrize("name", ["RTX 4090", "rtx-4090", "GeForce RTX 4090", "NVIDIA RTX4090"])
def test_a_gpu_answers_to_the_names_that_people_write(name):
    assert gpu(name).name == "rtx4090"


def test_an_unknown_gpu_is_told_the_known_ones():
    with pytest.raises(UserError, match=r"rtx9090.*nearest is 5090"):
        gpu("rtx9090")
