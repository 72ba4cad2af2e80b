"""Products with weights of each format are timed as a stage would compute them."""

from typing import get_args

import torch

from molink.checkpoint.model_shape import WeightFormat
from molink.engine.probes import format_probe
from molink.engine.probes.format_probe import FORMATS, probe_formats


def test_all_formats_are_timed(monkeypatch):
    monkeypatch.setattr(format_probe, "WIDTH", {"cpu": 256})
    monkeypatch.setattr(format_probe, "COLD_BYTES", {"cpu": 2**18})
    monkeypatch.setattr(format_probe, "MEASURE_S", 0.0)
    times = probe_formats("cpu")
    assert set(times) == set(FORMATS) == set(get_args(WeightFormat))
    assert all(one.read_s > 0 and one.row_s > 0 for one in times.values())


def test_weights_have_the_format_that_they_are_timed_for():
    held = {}
    for name, declared in FORMATS.items():
        layer = format_probe._random_linear(declared, 256, torch.bfloat16)
        if name != "plain":
            weight = layer.quantized
            held[name] = type(weight).__name__, weight.group
    assert held == {
        "int4_g128": ("Int4Weight", 128),
        "int4_g32": ("Int4Weight", 32),
        "int8": ("Int8Weight", 256),
        "int8_g32": ("Int8Weight", 32),
        "int8_g16": ("Int8Weight", 16),
        "mxfp4": ("Mxfp4Weight", 32),
        "fp8": ("Fp8Weight", 128),
    }


def test_reading_and_multiplying_are_told_apart(monkeypatch):
    """A row of 3 ms and a span of 5 ms are 4 ms of multiplying, by 128 rows and 2,048 squared."""
    seconds = {1: 0.003, 128: 0.005}
    monkeypatch.setattr(format_probe, "_product_s", lambda copies, rows: seconds[len(rows)])
    times = format_probe._times(None, torch.device("cpu"), torch.float32)
    weights = 2048 * 2048 / 1e9
    assert abs(times.read_s - 0.003 / weights) < 1e-9
    assert abs(times.row_s - 0.004 / 128 / weights) < 1e-9
