"""Measured step times: what was measured comes out again, and between it straight lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink_scheduler.batch import BatchClass
from molink_sim.hardware import gpu, read_profile
from molink_sim.hardware.interpolation import Curve, Surface

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


def point(rows, context, step_s):
    return {"rows": rows, "context": context, "step_s": step_s}


def middle_s(rows, context):
    return 0.003 + 0.0002 * rows + 1e-6 * rows * context


def profile_data():
    grid = [(rows, context) for context in (32, 512) for rows in (1, 8, 64)][:-1]
    middle = {
        "decode": [point(rows, context, middle_s(rows, context)) for rows, context in grid],
        "prefill": [point(16, 0, 0.01), point(512, 0, 0.2), point(512, 1024, 0.3)],
    }
    ends = {
        role: {
            "decode": [point(rows, 32, middle_s(rows, 32) + more) for rows in (1, 64)],
            "prefill": [point(16, 0, 0.01 + more), point(512, 0, 0.2 + more)],
        }
        for role, more in (("head", -0.0005), ("tail", 0.002))
    }
    about = {"format": "molink-profile", "version": 1, "model": "tiny", "device": "cpu"}
    return about | {"hidden_size": 64, "layers": 4, "middle": middle} | ends


@pytest.fixture
def write(tmp_path):
    def write_file(data, name="profile.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write_file


def test_what_was_measured_comes_out_again(write):
    data = profile_data()
    cost = read_profile(write(data))
    for one in data["middle"]["decode"]:
        rows = one["rows"]
        assert cost.step_s(DECODE, rows, rows * one["context"], rows) == pytest.approx(
            one["step_s"]
        )
    for one in data["middle"]["prefill"]:
        kv = one["rows"] + one["context"]
        assert cost.step_s(PREFILL, one["rows"], kv, 1) == pytest.approx(one["step_s"])


def test_between_and_beyond_are_straight_lines(write):
    cost = read_profile(write(profile_data()))
    assert cost.step_s(DECODE, 4, 4 * 200, 4) == pytest.approx(middle_s(4, 200))
    assert cost.step_s(DECODE, 8, 8 * 2000, 8) == pytest.approx(middle_s(8, 2000))
    assert cost.step_s(PREFILL, 512, 512 + 512, 1) == pytest.approx(0.25)


def test_depth_scales_the_layers_and_not_what_the_ends_add(write):
    path = write(profile_data())
    half = read_profile(path, layers=2).step_s(DECODE, 8, 256, 8)
    assert half == pytest.approx(middle_s(8, 32) / 2)
    tail = read_profile(path, layers=2, is_tail=True).step_s(DECODE, 8, 256, 8)
    assert tail == pytest.approx(half + 0.002)
    assert read_profile(path, is_tail=True).step_s(PREFILL, 16, 16, 1) == pytest.approx(0.012)


def test_a_head_that_measured_quicker_than_a_middle_stage_costs_the_same(write):
    path = write(profile_data())
    assert read_profile(path, is_head=True).step_s(DECODE, 1, 32, 1) == pytest.approx(
        middle_s(1, 32)
    )


def test_helix_tells_one_layer_in_two_files(write):
    decode = write("0,0\n2,0.9\n4,1.1\n", "x_decode_bs2time.csv")
    prompt = write("0,0\n250,1\n500,2\n", "x_prompt_bs2time.csv")
    for path in (decode, prompt):
        cost = read_profile(path, layers=10)
        assert cost.step_s(DECODE, 3, 3000, 3) == pytest.approx(0.010)
        assert cost.step_s(DECODE, 1, 1, 1) == pytest.approx(0.008)
        assert cost.step_s(PREFILL, 375, 375, 1) == pytest.approx(0.015)


KERNELS = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj"),
    *("post_attention_layernorm", "mlp_up_proj", "mlp_act", "mlp_down_proj", "add"),
)
SHAPE = {"n_head": 32, "n_kv_head": 32, "n_embd": 4096, "n_expanded_embd": 11008}


def vidur_csv(times_ms, workers=1):
    names = [f"time_stats.{kernel}.median" for kernel in KERNELS]
    fixed = SHAPE | {"vocab_size": 32768, "num_tensor_parallel_workers": workers}
    lines = [",".join([*names, "num_tokens", *fixed])]
    for tokens, ms in times_ms:
        values = [ms / len(KERNELS)] * len(KERNELS)
        lines.append(",".join(map(str, [*values, tokens, *fixed.values()])))
    return "\n".join(lines)


def test_vidur_tells_the_kernels_and_the_gpu_the_rest(write):
    path = write(vidur_csv([(1, 0.3), (101, 0.5), (101, 0.7), (101, 0.6)]), "a_mlp.csv")
    device = gpu("a100")
    cost = read_profile(path, layers=10, gpu=device)
    kv_s = 10 * 5000 * 16_384 / device.kv_bytes_per_s
    expected = 10 * 0.45e-3 + kv_s + device.step_overhead_s
    assert cost.step_s(DECODE, 51, 5000, 51) == pytest.approx(expected)
    tail = read_profile(path, layers=10, gpu=device, is_tail=True)
    assert tail.step_s(DECODE, 51, 5000, 51) > expected + 0.2e-3


def without(key):
    data = profile_data()
    del data[key]
    return data


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("p.json", "{", "cannot read"),
        ("p.json", {"format": "other"}, "no profile"),
        ("p.json", profile_data() | {"version": 2}, "version 1"),
        ("p.json", without("tail"), "tail"),
        ("p.json", profile_data() | {"layers": 0}, "layers"),
        ("p.json", profile_data() | {"head": {"decode": [], "prefill": []}}, "points"),
        ("x_decode_bs2time.csv", "0,0\n2,0.9\n", "x_prompt_bs2time"),
        ("x_mlp.csv", vidur_csv([(1, 0.3)], workers=2), "tensor-parallel"),
        ("x_mlp.csv", "a,b\n1,2\n", "tensor-parallel"),
        ("x.txt", "", "no profile"),
    ],
)
def test_files_that_are_no_profiles_are_refused(write, name, content, complaint):
    with pytest.raises(UserError, match=complaint):
        read_profile(write(content, name), layers=2, gpu=gpu("a100"))


@pytest.mark.parametrize("text", ["0,0\n2,fast\n", "0,0\n2,-1\n", "0,0\n2,nan\n", "0,0\n2\n"])
def test_values_that_are_no_times_are_refused(write, text):
    path = write(text, "x_decode_bs2time.csv")
    write("0,0\n2,1\n", "x_prompt_bs2time.csv")
    with pytest.raises(UserError, match="column ms"):
        read_profile(path, layers=1)


def test_a_table_of_one_layer_needs_a_depth_and_vidur_a_gpu(write):
    path = write(vidur_csv([(1, 0.3)]), "a_mlp.csv")
    with pytest.raises(UserError, match="how many"):
        read_profile(path, gpu=gpu("a100"))
    with pytest.raises(UserError, match="which GPU"):
        read_profile(path, layers=3)
    with pytest.raises(UserError, match="at least one layer"):
        read_profile(path, layers=0)


values = st.floats(0, 1e3)
axes = st.lists(st.integers(0, 500), min_size=1, max_size=6, unique=True)


@given(axes.flatmap(lambda xs: st.tuples(st.just(xs), st.lists(values, min_size=6, max_size=6))))
def test_a_curve_goes_through_its_points(given_points):
    xs, ys = given_points
    curve = Curve.through(zip(xs, ys, strict=False))
    for x, y in zip(xs, ys, strict=False):
        assert curve.at(x) == pytest.approx(y)


@given(axes, st.floats(-10, 600), st.floats(-10, 600))
def test_a_plane_is_met_everywhere_and_never_falls_below_zero(xs, x, y):
    def plane(at_x, at_y):
        return 3 + 0.5 * at_x + 0.25 * at_y

    surface = Surface.through((one, other, plane(one, other)) for one in xs for other in (0, 64))
    expected = plane(x if len(xs) > 1 else xs[0], y)
    assert surface.at(x, y) == pytest.approx(max(0.0, expected), abs=1e-6)
    assert Curve((0, 1), (5, 1)).at(100) == 0
