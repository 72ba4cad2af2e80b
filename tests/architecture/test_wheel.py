"""What `pip install molink` and `pip install molink[sim]` bring: the packages with their data, and
nothing else; a volunteer none of what is only for those who run a cluster."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = {"molink", "molink_scheduler", "molink_agent"}

DATA = {
    "molink": "py.typed requirements.lock extras.lock torch.lock",
    "molink_scheduler": "py.typed",
    "molink/api/openapi": "docs.css docs.html docs.js",
    "molink/api/page": "addresses.js announcer.js answer.js answering.js api.js attach.js "
    "chat.js dom.js history.js icon.svg index.html links.js main.js markdown.js math.js page.css "
    "ring.js settings.js",
    "molink_agent/page": "index.html page.css page.js",
    "molink/checkpoint/catalogue": "models.json",
    "molink/hardware": "cards.toml",
    "molink/models/demo": "config.json generation_config.json model.safetensors README.md "
    "tokenizer.json tokenizer_config.json",
    "molink/models/demo_drafter": "config.json generation_config.json model.safetensors README.md",
    "molink/engine/kernels/cpu/native": "attention_call.h coded.h decode_attention.h "
    "fp32_attention.h join_parts.h linear_coded_f32.h span_attention.h",
    "molink/engine/kernels/cpu/native/avx2": "bfloat16.h decode_attention_bf16.c "
    "decode_attention_f32.c join_parts.c linear_bf16.c linear_coded_f32.c span_attention_bf16.c "
    "span_attention_f32.c vectors.h",
    "molink/engine/kernels/cpu/native/avx512": "amx.h attention.h decode_attention.c "
    "decode_attention_f32.c decoder_layer.c join_parts.c linear_bf16.c linear_coded_bf16.c "
    "linear_coded_f32.c span_attention.c tile.h vectors.h",
}
"""The files that are no Python, by folder."""

OPERATORS = {"textual", "gguf", "molink-sim"}
"""What is only for those who run a cluster."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, zipfile.ZipFile]:
    """Both wheels, as a release has them, by distribution."""
    backend = pytest.importorskip("hatchling.builders.wheel")
    folder = str(tmp_path_factory.mktemp("wheels"))
    made = {}
    for name, root in (("molink", ROOT), ("molink-sim", ROOT / "sim")):
        (path,) = backend.WheelBuilder(str(root)).build(directory=folder, versions=["standard"])
        made[name] = zipfile.ZipFile(path)
    return made


@pytest.fixture(scope="module")
def shipped(wheels) -> dict[str, list[PurePosixPath]]:
    """The files of each wheel, what describes the wheel itself left out."""
    return {
        name: sorted(path for path in map(PurePosixPath, wheel.namelist()) if not _about(path))
        for name, wheel in wheels.items()
    }


def _about(path: PurePosixPath) -> bool:
    return path.parts[0].endswith(".dist-info")


def described(wheel: zipfile.ZipFile, file: str) -> str:
    (path,) = (name for name in wheel.namelist() if name.endswith(f".dist-info/{file}"))
    return wheel.read(path).decode()


def needed(wheel: zipfile.ZipFile, extra: str = "") -> dict[str, Requirement]:
    """What an installation brings beside the wheel, by name."""
    lines = message_from_string(described(wheel, "METADATA")).get_all("Requires-Dist", [])
    found = map(Requirement, lines)
    return {
        one.name: one for one in found if not one.marker or one.marker.evaluate({"extra": extra})
    }


def test_only_the_packages_are_in_them(shipped):
    assert {path.parts[0] for path in shipped["molink"]} == PACKAGES
    assert {path.parts[0] for path in shipped["molink-sim"]} == {"molink_sim"}
    assert not [
        path for path in shipped["molink"] if {"tests", "tools", "experiments"} & set(path.parts)
    ]


def test_data_are_the_demo_model_the_kernels_and_the_marks_of_types(shipped):
    found = {str(path) for path in shipped["molink"] if path.suffix != ".py"}
    assert found == {f"{folder}/{name}" for folder in DATA for name in DATA[folder].split()}
    assert {path.suffix for path in shipped["molink-sim"]} == {".py"}


def test_a_volunteer_needs_nothing_that_is_for_operators(wheels):
    assert len(needed(wheels["molink"])) > 20
    assert not needed(wheels["molink"]).keys() & OPERATORS
    brought = partial(needed, wheels["molink"])
    extras = {name for extra in ("dashboard", "import", "sim") for name in brought(extra)}
    assert extras - needed(wheels["molink"]).keys() == OPERATORS


def test_the_simulator_is_of_the_same_release(wheels):
    about = {name: message_from_string(described(wheels[name], "METADATA")) for name in wheels}
    release = about["molink"]["Version"]
    assert about["molink-sim"]["Version"] == release
    assert {name: str(one.specifier) for name, one in needed(wheels["molink-sim"]).items()} == {
        "molink": f"=={release}"
    }


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> Path:
    """What a volunteer has beside MoLink, borrowed from here."""
    folder = tmp_path_factory.mktemp("libraries")
    left_out = ("molink", "_molink", *OPERATORS)
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(left_out):
            (folder / path.name).symlink_to(path)
    return folder


def ran(folder: Path, libraries: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`molink` as it is in a folder, with nothing else of it in sight."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "molink.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{libraries}"},
    )


def test_a_volunteers_commands_run_and_the_simulators_comes_with_its_wheel(
    wheels, libraries, tmp_path
):
    wheels["molink"].extractall(tmp_path)
    assert ran(tmp_path, libraries, "agent", "status", "--help").stdout.startswith("Usage: molink")
    alone = ran(tmp_path, libraries, "sim", "plan", "--help")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "pip install 'molink[sim]'" in alone.stderr
    wheels["molink-sim"].extractall(tmp_path)
    both = ran(tmp_path, libraries, "sim", "plan", "--help")
    assert both.stdout.startswith("Usage: molink sim plan"), both.stderr
