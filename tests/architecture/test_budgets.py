"""The size of each room, of functions, and of what must be read to change one thing, as budgets.

`budgets.toml` has them, and changes only in a commit that says why. A budget that a room no longer
needs is lowered: what has become smaller stays so.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "molink": "molink",
    "molink_scheduler": "scheduler/molink_scheduler",
    "molink_agent": "agent/molink_agent",
    "molink_sim": "sim/molink_sim",
}
BUDGETS = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text(encoding="utf-8"))

FUNCTION_LINES_MAX = 45
SLACK, SLACK_LINES = 1.05, 100
"""Largest budget: a multiple of what is there, and some lines."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Imports of the whole product, those for types included."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def lines_of(file: Path) -> int:
    """Lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


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


def beside_budget(sizes: Mapping[str, int], budgets: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each that has no budget, more than its budget, or far less."""
    for name in sorted({*sizes, *budgets}):
        size, budget = sizes.get(name, 0), budgets.get(name, 0)
        if size > budget:
            yield f"{name} has {size} lines of {budget}: take some out, or say why it needs more"
        elif budget > size * SLACK + SLACK_LINES:
            yield f"{name} has {size} lines of {budget}: lower its budget"


def long_functions(source: str, name: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function over FUNCTION_LINES_MAX."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{name}:{node.name}", lines


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each imports another one of them, sorted; none where there is no circle."""
    left = {module: set(imported) for module, imported in imports.items()}
    while ends := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in ends}
    while starts := left.keys() - set().union(*left.values(), set()):
        left = {module: imported for module, imported in left.items() if module not in starts}
    return sorted(left)


def file_of(module: str) -> Path:
    """The file of a module of the product."""
    package, _, rest = module.partition(".")
    path = ROOT / PACKAGES[package] / rest.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def test_every_room_is_within_its_budget():
    assert not list(beside_budget(rooms(), BUDGETS["lines"]))


def test_a_room_that_grows_or_shrinks_is_named():
    told = list(beside_budget({"a": 11, "b": 50, "c": 1}, {"a": 10, "b": 200}))
    assert [one.split()[0] for one in told] == ["a", "b", "c"]
    assert not list(beside_budget({"a": 100}, {"a": 104}))


def test_functions_are_short():
    """Those of the list are kernels."""
    found = dict[str, int]()
    for path in PACKAGES.values():
        for file in sorted((ROOT / path).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            found |= dict(long_functions(file.read_text(encoding="utf-8"), name))
    assert not list(beside_budget(found, BUDGETS["long_functions"]))


def test_a_long_function_is_found():
    body = "".join("    x = 1\n" for _ in range(FUNCTION_LINES_MAX))
    assert list(long_functions(f"def f():\n{body}", "a.py")) == [("a.py:f", 46)]
    assert not list(long_functions(f"def f():\n{body[:-10]}", "a.py"))


def test_no_imports_form_a_circle(graph):
    assert not circle({one: graph.find_modules_directly_imported_by(one) for one in graph.modules})


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("module", sorted(BUDGETS["must_be_read"]))
def test_what_must_be_read_to_change_a_module_stays_within_bounds(graph, module):
    """All that it imports, and what that imports."""
    read = graph.find_upstream_modules(module) | {module}
    found = {"modules": len(read), "lines": sum(lines_of(file_of(one)) for one in read)}
    assert not list(beside_budget(found, BUDGETS["must_be_read"][module]))
