"""The docstring beneath a field or a constant reads alone: a noun phrase, no fragment.

"Of stages, since it came here." needs the name above it, its class and a neighbour; a tooltip
shows it without them. "Blocks that the other stages hold" needs nothing.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ROOMS_DONE = (
    "agent/molink_agent",
    "molink/agents_api",
    "molink/api",
    "molink/bench",
    "molink/checkpoint",
    "molink/cli",
    "molink/client",
    "molink/config",
    "molink/control/registry",
    "molink/coordinator/audits",
    "molink/coordinator/nodes",
    "molink/coordinator/planning",
    "molink/coordinator/requests",
    "molink/dashboard",
    "molink/engine",
    "molink/engine_protocol",
    "molink/hardware",
    "molink/importing",
    "molink/serving",
    "molink/stage",
    "molink/stage_protocol",
    "molink/terminal",
    "molink/transport",
    "molink/wire",
    "molink/workload",
    "scheduler/molink_scheduler",
    "sim/molink_sim",
)
"""Folders whose field docs all read alone, sorted."""

NOT_YET = ("scheduler/molink_scheduler/link/",)
"""Folders inside those whose turn is still to come."""

FRAGMENT = re.compile(r"(Of|That|As)\b|\.\.\.|…")
"""Beginnings of a docstring that goes on from something else."""


def field_docs(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring beneath an assignment."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for assigned, told in pairwise(body if isinstance(body, list) else ()):
            match assigned, told:
                case (
                    ast.Assign() | ast.AnnAssign(),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    yield told.lineno, text


def fragments(source: str) -> list[tuple[int, str]]:
    """Field docs that begin as a fragment, by line."""
    return sorted((line, text) for line, text in field_docs(source) if FRAGMENT.match(text))


def files_of(room: str) -> Iterator[Path]:
    """Python files of a room, but for those that are not to be read yet."""
    for file in sorted((ROOT / room).rglob("*.py")):
        if not file.relative_to(ROOT).as_posix().startswith(NOT_YET):
            yield file


@pytest.mark.parametrize("room", ROOMS_DONE)
def test_field_docs_read_alone(room: str) -> None:
    files = list(files_of(room))
    assert files, f"{room} has no Python file"
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in fragments(file.read_text(encoding="utf-8"))
    ]
    assert not found, "name the thing that the field holds:\n" + "\n".join(found)


def test_fragments_are_found() -> None:
    source = '''
LIMIT = 3
"""Of one ring."""

class Stage:
    """That is no field."""

    blocks: int = 0
    """That the others hold."""
    split = "planned"
    """As `--split`."""
    first: int
    """Blocks that the first stage holds..."""
    rest: int
    """...and those of all others."""

    def __init__(self) -> None:
        self.offset = 0
        """Offset of its first row."""
        self.rows = 0
        """Of a step."""
'''
    assert [line for line, _ in fragments(source)] == [3, 9, 11, 15, 21]


def test_rooms_are_sorted() -> None:
    assert list(ROOMS_DONE) == sorted(ROOMS_DONE)
