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

ROOMS = ("agent/molink_agent", "molink", "scheduler/molink_scheduler", "sim/molink_sim")
"""Folders of the product, whose field docs all read alone."""

FRAGMENT = re.compile(r"(Of|That|As|[Aa]nd)\b|\.\.\.|…")
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


@pytest.mark.parametrize("room", ROOMS)
def test_field_docs_read_alone(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
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
        self.held_rows = 0
        """And not yet sent."""
'''
    assert [line for line, _ in fragments(source)] == [3, 9, 11, 15, 21, 23]
