"""One module knows what a GB and a GiB are: sizes are bytes, and no text means another unit."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("molink", "scheduler/molink_scheduler", "agent/molink_agent", "sim/molink_sim")
UNITS = "scheduler/molink_scheduler/units.py"

NOT_BYTES = {
    "molink/api/metrics/otlp.py": "nanoseconds of a second",
    "molink/terminal/catalogue_report.py": "parameters of a model",
    "molink/dashboard/pages/columns.py": "units of any column; the dashboard knows no scheduler",
    "molink/findings/judged.py": "bytes, where no room but the report may be known",
    "molink/hardware/format_times.py": "operations, by which a rate is told",
    "scheduler/molink_scheduler/placement/facts.py": "rows a second, at most",
}
"""Files whose number of this size counts something else, or that may not know the units."""

GIGA = {10**9, 2**30}


def value_of(node: ast.AST) -> float | None:
    """The number that an expression of numbers stands for; None for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=ast.Pow() | ast.LShift() | ast.Mult() as op, right=right):
            a, b = value_of(left), value_of(right)
            if a is None or b is None or max(a, b) > 2**40:
                return None
            match op:
                case ast.Mult():
                    return a * b
                case ast.LShift():
                    return int(a) << int(b)
            return float(a) ** b
    return None


def giga_lines(source: str) -> Iterator[int]:
    """Lines on which 10**9 or 2**30 is written."""
    for node in ast.walk(ast.parse(source)):
        if value_of(node) in GIGA:
            assert isinstance(node, ast.expr)
            yield node.lineno


def files() -> Iterator[str]:
    """The product's modules, by their path."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix()


def test_one_module_says_what_a_gigabyte_is() -> None:
    elsewhere = set(files()) - {UNITS, *NOT_BYTES}
    found = [
        f"{file}:{line}"
        for file in sorted(elsewhere)
        for line in giga_lines((ROOT / file).read_text(encoding="utf-8"))
    ]
    assert not found, f"take GB or GIB from {UNITS}: {', '.join(found)}"


@pytest.mark.parametrize("file", [UNITS, *NOT_BYTES])
def test_the_exceptions_are_needed(file: str) -> None:
    assert list(giga_lines((ROOT / file).read_text(encoding="utf-8")))


def test_the_usual_ways_to_write_it_are_found() -> None:
    source = "a = 2**30\nb = 1 << 30\nc = 1024**3\nd = 1e9\ne = 10**9\nf = 1_000_000_000\n"
    source += "g = 4_000_000_000\nh = 2**20\ni = x**30\n"
    assert list(giga_lines(source)) == [1, 2, 3, 4, 5, 6]
