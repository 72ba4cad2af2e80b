"""A row of a decode batch in bf16 has the same bits alone and beside 111 others, drafts or not."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from molink.engine.kernels.cpu.native_kernel import FOLDER_VARIABLE
from tests.engine.drafts.many_rows import ROWS_MAX
from tests.engine.tiny_models import ARCHITECTURES
from tests.sweeps import swept

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

FAMILIES = sorted({*ARCHITECTURES} - {"deepseek_v3", "gpt2"})
"""Families whose products are ours, or torch's of few channels; torch's products of latent rows and
of gpt2's transposed weights depend on how many rows there are."""


@pytest.fixture(scope="session")
def without_tiles(tmp_path_factory):
    """Environment of a process whose products have one order of sums for any number of rows."""
    folder = tmp_path_factory.mktemp("compiler")
    wrapper = folder / "cc"
    wrapper.write_text(f'#!/bin/sh\nexec {COMPILER} -U__linux__ "$@"\n')
    wrapper.chmod(0o755)
    own = {"PATH": f"{folder}:{os.environ['PATH']}", FOLDER_VARIABLE: str(folder / "kernels")}
    return os.environ | own | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}


def compared(environment, *arguments: str) -> dict[str, list[int]]:
    command = [sys.executable, "-m", "tests.engine.drafts.many_rows", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = map(json.loads, done.stdout.splitlines())
    return {name: figures for name, *figures in lines}


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here")
@pytest.mark.parametrize("rounds", swept((6, 1_000), 6))
def test_a_row_is_what_it_is_alone(rounds, without_tiles):
    ((_, largest, differ),) = compared(without_tiles, str(rounds), "bfloat16", "demo").values()
    assert (largest, differ) == (ROWS_MAX, 0)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here")
@pytest.mark.parametrize(
    "names", swept([("qwen3", "gemma3_text"), tuple(FAMILIES)], ("qwen3", "gemma3_text"))
)
def test_a_row_is_what_it_is_alone_in_all_families(names, without_tiles):
    found = compared(without_tiles, "6", "bfloat16", *names)
    assert {name: differ for name, (_, _, differ) in found.items()} == dict.fromkeys(names, 0)
