"""Stages loaded from what was fetched compute what stages loaded from the whole model do."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from molink.engine.step.stage import StageExecutor
from molink_agent.weights import ensure_weights
from tests.agent.weights.weights_server import QUICK
from tests.engine.cpu_stages import cpu_stage
from tests.engine.ring_driver import Job, RingDriver
from tests.engine.tiny_models import LAYERS, save_tiny, tiny_config, tiny_model

CUTS = (0, 2, 5, LAYERS)


@pytest.mark.parametrize(
    ("name", "single"), [("llama", True), ("tied_llama", True), ("gpt2", False), ("mixtral", True)]
)
async def test_stages_from_fetched_weights_compute_the_same(serve, home, tmp_path, name, single):
    whole = tmp_path / "whole"
    if single:
        tiny_model(tiny_config(name)).save_pretrained(whole)
        assert (whole / "model.safetensors").exists()
    else:
        save_tiny(name, whole)
    server = await serve(whole, block_bytes=8192)
    fetched, originals = [], []
    for start, stop in pairwise(CUTS):
        layers = range(start, stop)
        view = await ensure_weights(server.source, layers, home, QUICK)
        fetched.append(cpu_stage(view, layers, kv_tokens=256))
        originals.append(cpu_stage(whole, layers, kv_tokens=256))
    for ours, theirs in zip(fetched, originals, strict=True):
        assert_same_weights(ours.model.state_dict(), theirs.model.state_dict())
    assert drawn_by(fetched) == drawn_by(originals)


def assert_same_weights(ours: dict, theirs: dict) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, theirs[name]), name


def drawn_by(stages: list[StageExecutor]) -> list:
    job = Job(0, [5, 17, 99, 3, 42, 8], 6)
    RingDriver(stages).run([job])
    assert len(job.drawn) == 6
    return job.drawn


def test_the_agents_side_never_loads_torch(tmp_path):
    """Nor transformers: neither by being imported nor by planning."""
    program = (
        "import sys, molink_agent.weights, molink.checkpoint.checkpoint;"
        "import molink.checkpoint.shard_plan;"
        "import molink.checkpoint.weights_manifest, molink_agent.weights.__main__;"
        "from molink.checkpoint.shard_plan import *;"
        "plan_shards({'model.layers.0.a': 'x', 'model.layers.1.a': 'x'}, shape_of({}), range(1));"
        "import json; print(json.dumps(sorted({'torch', 'transformers'} & set(sys.modules))))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(done.stdout) == []
