"""What `pip install molink` brings: the four packages with their data, and nothing else."""

from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"molink", "molink_scheduler", "molink_agent", "molink_sim"}

DATA = {
    "molink": "py.typed requirements.lock torch.lock",
    "molink_scheduler": "py.typed",
    "molink/api/openapi": "docs.css docs.html docs.js",
    "molink/api/page": "announcer.js answer.js api.js dom.js icon.svg index.html main.js "
    "markdown.js page.css ring.js settings.js",
    "molink/models/demo": "config.json generation_config.json model.safetensors README.md "
    "tokenizer.json tokenizer_config.json",
    "molink/engine/kernels/cpu/native": "attention_call.h coded.h decode_attention_f32.h "
    "linear_coded_f32.h",
    "molink/engine/kernels/cpu/native/avx2": "decode_attention_f32.c linear_coded_f32.c vectors.h",
    "molink/engine/kernels/cpu/native/avx512": "amx.h attention.h decode_attention.c "
    "decode_attention_f32.c decoder_layer.c linear_bf16.c linear_coded_bf16.c linear_coded_f32.c "
    "span_attention.c tile.h vectors.h",
}
"""The files that are no Python, by folder."""


@pytest.fixture(scope="module")
def shipped() -> list[PurePosixPath]:
    """As the build backend lists them; nothing is built."""
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = wheel.WheelBuilder(str(ROOT)).recurse_included_files()
    return sorted(PurePosixPath(file.distribution_path) for file in files)


def test_only_the_packages_are_in_it(shipped):
    assert {path.parts[0] for path in shipped} == PACKAGES
    assert not [path for path in shipped if {"tests", "tools", "experiments"} & set(path.parts)]


def test_data_are_the_demo_model_the_kernels_and_the_marks_of_types(shipped):
    found = {str(path) for path in shipped if path.suffix != ".py"}
    assert found == {f"{folder}/{name}" for folder in DATA for name in DATA[folder].split()}
