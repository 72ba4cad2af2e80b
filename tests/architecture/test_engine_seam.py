"""A stage computes through its engine's eleven methods, and imports neither it nor torch.

import-linter holds it too (`pyproject.toml`); here it can be seen to fail, and what a stage may
call is counted.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from molink.engine.local_engine import LocalEngine
from molink.engine_protocol.engine import Engine

ROOT = Path(__file__).parents[2]
ROOMS = ("molink/stage", "molink/engine_protocol")
BEYOND = ("molink.engine", "torch", "transformers")
"""What a stage does not import, with what is inside."""

MAKER = "molink/stage/stage_process.py"
"""The one that makes an engine."""

METHODS = {
    *("prepare", "admit", "step", "release", "rows_kept", "blocks_out", "blocks_in", "hold"),
    *("borrow", "report", "blocks_copied"),
}


def beyond(source: str) -> Iterator[str]:
    """Modules beyond the seam that a file imports, also within a function or for types."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [one.name for one in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [module, *(f"{module}.{one.name}" for one in names)]
            case _:
                continue
        yield from (one for one in found if f"{one}.".startswith(tuple(f"{b}." for b in BEYOND)))


def methods_of(kind: type) -> set[str]:
    return {
        name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))
    }


def test_nobody_but_the_process_reaches_beyond_the_seam():
    found = {
        str(file.relative_to(ROOT)): sorted(crossed)
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        if (crossed := set(beyond(file.read_text(encoding="utf-8"))))
    }
    assert found == {
        MAKER: ["molink.engine.local_engine", "molink.engine.local_engine.LocalEngine"]
    }


def test_imports_beyond_the_seam_are_found_wherever_they_stand():
    source = """
import torch.nn as nn
from molink.engine_protocol.engine import Engine
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from molink import engine

def later():
    from molink.engine.step.stage import StageExecutor
"""
    assert sorted(set(beyond(source))) == [
        "molink.engine",
        "molink.engine.step.stage",
        "molink.engine.step.stage.StageExecutor",
        "torch.nn",
    ]


def test_an_engine_has_eleven_methods_and_the_local_one_all_of_them():
    assert methods_of(Engine) == METHODS
    assert methods_of(LocalEngine) >= METHODS
