"""Stages of tests: on the CPU, small, and not tested by themselves first."""

from molink.engine.loading import load_stage
from molink.stage_protocol.messages import StageWork


def cpu_stage(directory, layers: range, progress=lambda fraction: None, **options):
    self_test = options.pop("self_test", False)
    work = {"device": "cpu", "dtype": "float32", "kv_tokens": 64} | options
    layers = (layers.start, layers.stop)
    return load_stage(str(directory), StageWork(layers, **work), progress, self_test=self_test)
