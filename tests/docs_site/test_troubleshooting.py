"""What the page on troubleshooting puts in italics is what the program says."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("molink", "agent", "scheduler", "sim")
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
BODY = PAGE.partition("\n## ")[2]
QUOTED = sorted(set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", BODY)))


def sentences() -> Iterator[str]:
    """Every text in the code, with `{}` for what an f-string puts in."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                    yield text_of(node)


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "{}"


@cache
def said() -> str:
    return "\n".join({" ".join(text.split()) for text in sentences()})


def is_said(quoted: str) -> bool:
    return bool(re.search(".*".join(map(re.escape, quoted.split("..."))), said()))


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_program_says_it(quoted):
    assert is_said(quoted)


def test_the_page_quotes_and_a_wrong_quotation_is_noticed():
    assert len(QUOTED) > 60
    assert not is_said("the flux capacitor is ... GiB short")
