"""The budgets of the product, and what is there of each.

    python -m tools.structure budgets [--write]

Budgets stand in `tests/architecture/budgets.toml`. `--write` writes that file anew from what is
there, and names each figure that rose: such a one needs its reason in the commit.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from tools.structure.capabilities import knowing_files
from tools.structure.classes import counts, large_classes
from tools.structure.files import (
    PACKAGES,
    ROOT,
    file_of,
    lines_of,
    name_of,
    product_files,
    read_for,
    source_of,
)
from tools.structure.flows import flows

BUDGETS = ROOT / "tests/architecture/budgets.toml"

FUNCTION_LINES_MAX = 45
SLACK, SLACK_LINES = 1.05, 100
"""Largest budget: a multiple of what is there, and some lines."""

READ = (
    "molink.stage.loop",
    "molink_scheduler.recovery.machine",
    "molink.coordinator.upkeep.recovery",
    "molink_scheduler.head.scheduler",
)
"""Modules that are changed most, and had most to be read for."""

Figures = Mapping[str, Any]
"""Figures by name; some are tables of such."""

HEAD = """\
# Budgets of the product; the tests of tests/architecture hold them.
# `python -m tools.structure budgets --write` writes them anew.
"""

SECTIONS = {
    "lines": "Lines of Python of each room.",
    "long_functions": "Over 45 lines: two kernels.",
    "must_be_read": "Modules that somebody who changes the first reads at most, and their lines.",
    "capabilities": "Files that know three or more capabilities, and how many; two are allowed.",
    "classes": "Classes of more than 12 fields or 20 methods, values' fields excepted.",
    "counts": "Figures of the whole product that are to fall.",
    "flows": "Files that a thing passes, as tools/structure/flows.py derives them.",
}
"""Sections of the file, and what they hold."""


def rooms() -> dict[str, int]:
    """Lines of Python of each room: a package of the product but for `molink`, whose folders and
    single files are rooms."""
    found = {path: 0 for name, path in PACKAGES.items() if name != "molink"}
    for path in found:
        found[path] = sum(map(lines_of, (ROOT / path).rglob("*.py")))
    for folder in (ROOT / "molink").iterdir():
        if files := list(folder.rglob("*.py")):
            found[f"molink/{folder.name}"] = sum(map(lines_of, files))
    found["molink/*.py"] = sum(map(lines_of, (ROOT / "molink").glob("*.py")))
    return found


def long_functions(source: str, name: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function over FUNCTION_LINES_MAX."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{name}:{node.name}", lines


def all_long_functions() -> dict[str, int]:
    """Functions of the product over FUNCTION_LINES_MAX, and their lines."""
    found = dict[str, int]()
    for file in product_files():
        found |= dict(long_functions(source_of(file), name_of(file)))
    return found


def must_be_read(module: str) -> dict[str, int]:
    """Modules and lines that somebody who changes a module reads at most."""
    read = read_for(module)
    return {"modules": len(read), "lines": sum(lines_of(file_of(one)) for one in read)}


def measured() -> dict[str, Figures]:
    """What is there of all that has a budget, by section."""
    return {
        "lines": rooms(),
        "long_functions": all_long_functions(),
        "must_be_read": {module: must_be_read(module) for module in READ},
        "capabilities": knowing_files(),
        "classes": large_classes(),
        "counts": counts(),
        "flows": flows(),
    }


def budgets() -> dict[str, Figures]:
    """Budgets as they stand in the file, by section."""
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def beside_budget(
    sizes: Mapping[str, int],
    budgets: Mapping[str, int],
    unit: str = "lines",
    slack: int = SLACK_LINES,
) -> Iterator[str]:
    """A sentence for each that has no budget, more than its budget, or far less."""
    for name in sorted({*sizes, *budgets}):
        size, budget = sizes.get(name, 0), budgets.get(name, 0)
        if size > budget:
            yield f"{name} has {size} {unit} of {budget}: take some out, or say why it needs more"
        elif budget > size * SLACK + slack:
            yield f"{name} has {size} {unit} of {budget}: lower its budget"


def flat(figures: Figures) -> dict[str, int]:
    """Figures whose names hold those of the tables that they stand in."""
    found = dict[str, int]()
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found |= {f"{name} {rest}": one for rest, one in flat(value).items()}
        else:
            found[name] = value
    return found


def roomy(lines: int) -> int:
    """A budget that leaves a room a few lines: the next hundred, of small rooms the next 25."""
    return -(-(lines + 25) // 100) * 100 if lines > 1000 else -(-lines // 25) * 25


def with_room(figures: Mapping[str, Figures]) -> dict[str, Figures]:
    """Figures as budgets: lines are rounded up, all else is as it is."""
    read = {
        module: {**one, "lines": -(-one["lines"] // 100) * 100}
        for module, one in figures["must_be_read"].items()
    }
    lines = {room: roomy(one) for room, one in figures["lines"].items()}
    return {**figures, "lines": lines, "must_be_read": read}


def as_toml(figures: Mapping[str, Figures]) -> str:
    """The text of the file."""
    parts = [HEAD]
    for section, what in SECTIONS.items():
        rows = [f'"{name}" = {_plain(one)}' for name, one in sorted(figures[section].items())]
        parts.append("\n".join([f"# {what}", f"[{section}]", *rows, ""]))
    return "\n".join(parts)


def _plain(value: int | Figures) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {one}' for name, one in value.items())} }}"
    return str(value)


def raised(before: Mapping[str, Figures], after: Mapping[str, Figures]) -> list[str]:
    """A line for each figure that is above what it was, or is new."""
    old, new = flat(before), flat(after)
    return [
        f"{name}: {old.get(name, 0)} -> {one}"
        for name, one in sorted(new.items())
        if one > old.get(name, 0)
    ]


def write() -> list[str]:
    """Writes the file anew. Returns what rose."""
    before, after = budgets(), with_room(measured())
    BUDGETS.write_text(as_toml(after), encoding="utf-8")
    return raised(before, after)
