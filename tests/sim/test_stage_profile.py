"""Measured step times: what was measured comes out again, and between it straight lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink_scheduler.batch import BatchClass
from molink_sim.stage_profile import Curve, Surface, read_stage_profile

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
    def write_file(data):
        path = tmp_path / "profile.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write_file


def cost_of(path, layers=4, is_head=False, is_tail=False):
    return read_stage_profile(path).cost(layers, is_head, is_tail)


def test_what_was_measured_comes_out_again(write):
    data = profile_data()
    cost = cost_of(write(data))
    for one in data["middle"]["decode"]:
        rows = one["rows"]
        assert cost.step_s(DECODE, rows, rows * one["context"], rows) == pytest.approx(
            one["step_s"]
        )
    for one in data["middle"]["prefill"]:
        kv = one["rows"] + one["context"]
        assert cost.step_s(PREFILL, one["rows"], kv, 1) == pytest.approx(one["step_s"])


def test_between_and_beyond_are_straight_lines(write):
    cost = cost_of(write(profile_data()))
    assert cost.step_s(DECODE, 4, 4 * 200, 4) == pytest.approx(middle_s(4, 200))
    assert cost.step_s(DECODE, 8, 8 * 2000, 8) == pytest.approx(middle_s(8, 2000))
    assert cost.step_s(PREFILL, 512, 512 + 512, 1) == pytest.approx(0.25)


def test_depth_scales_the_layers_and_not_what_the_ends_add(write):
    path = write(profile_data())
    half = cost_of(path, layers=2).step_s(DECODE, 8, 256, 8)
    assert half == pytest.approx(middle_s(8, 32) / 2)
    tail = cost_of(path, layers=2, is_tail=True).step_s(DECODE, 8, 256, 8)
    assert tail == pytest.approx(half + 0.002)
    assert cost_of(path, is_tail=True).step_s(PREFILL, 16, 16, 1) == pytest.approx(0.012)


def test_a_head_that_measured_quicker_than_a_middle_stage_costs_the_same(write):
    path = write(profile_data())
    assert cost_of(path, is_head=True).step_s(DECODE, 1, 32, 1) == pytest.approx(middle_s(1, 32))


def without(key):
    data = profile_data()
    del data[key]
    return data


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("{", "cannot read"),
        ({"format": "other"}, "no profile"),
        (profile_data() | {"version": 2}, "version 1"),
        (without("tail"), "tail"),
        (profile_data() | {"layers": 0}, "layers"),
        (profile_data() | {"head": {"decode": [], "prefill": []}}, "points"),
    ],
)
def test_files_that_are_no_profiles_are_refused(write, content, complaint):
    with pytest.raises(UserError, match=complaint):
        read_stage_profile(write(content))


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
