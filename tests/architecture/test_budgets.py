"""The size of each room, of functions, and of what must be read to change one thing, as budgets.

`budgets.toml` has them, and changes only in a commit that says why. A budget that a room no longer
needs is lowered: what has become smaller stays so.
"""

import tomllib
from collections.abc import Mapping

import grimp
import pytest

from tools.structure.budgets import (
    FUNCTION_LINES_MAX,
    READ,
    SECTIONS,
    all_long_functions,
    as_toml,
    beside_budget,
    budgets,
    long_functions,
    must_be_read,
    raised,
    rooms,
    with_room,
)
from tools.structure.files import imports


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Imports of the whole product, those for types included."""
    return imports()


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each imports another one of them, sorted; none where there is no circle."""
    left = {module: set(imported) for module, imported in imports.items()}
    while ends := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in ends}
    while starts := left.keys() - set().union(*left.values(), set()):
        left = {module: imported for module, imported in left.items() if module not in starts}
    return sorted(left)


def test_every_room_is_within_its_budget():
    assert not list(beside_budget(rooms(), budgets()["lines"]))


def test_a_room_that_grows_or_shrinks_is_named():
    told = list(beside_budget({"a": 11, "b": 50, "c": 1}, {"a": 10, "b": 200}))
    assert [one.split()[0] for one in told] == ["a", "b", "c"]
    assert not list(beside_budget({"a": 100}, {"a": 104}))


def test_functions_are_short():
    """Those of the list are kernels."""
    assert not list(beside_budget(all_long_functions(), budgets()["long_functions"]))


def test_a_long_function_is_found():
    body = "".join("    x = 1\n" for _ in range(FUNCTION_LINES_MAX))
    assert list(long_functions(f"def f():\n{body}", "a.py")) == [("a.py:f", 46)]
    assert not list(long_functions(f"def f():\n{body[:-10]}", "a.py"))


def test_no_imports_form_a_circle(graph):
    assert not circle({one: graph.find_modules_directly_imported_by(one) for one in graph.modules})


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("module", READ)
def test_what_must_be_read_to_change_a_module_stays_within_bounds(module):
    """All that it imports, and what that imports."""
    assert not list(beside_budget(must_be_read(module), budgets()["must_be_read"][module]))


FIGURES = {section: {} for section in SECTIONS} | {
    "lines": {"a": 1001, "b": 26},
    "must_be_read": {"a.b": {"modules": 3, "lines": 101}},
    "classes": {"a.py:A": {"methods": 21}},
}


def test_budgets_written_are_read_back_and_hold():
    written = with_room(FIGURES)
    assert tomllib.loads(as_toml(written)) == written
    assert written["lines"] == {"a": 1100, "b": 50}
    assert written["must_be_read"]["a.b"] == {"modules": 3, "lines": 200}
    assert not list(beside_budget(FIGURES["lines"], written["lines"]))


def test_what_rises_is_named():
    before = {**FIGURES, "classes": {"a.py:A": {"methods": 22}}, "lines": {"a": 1000, "c": 9}}
    assert raised(before, FIGURES) == ["lines a: 1000 -> 1001", "lines b: 0 -> 26"]
    assert raised(FIGURES, FIGURES) == []


def test_the_file_has_the_sections_that_are_measured():
    assert set(budgets()) == set(SECTIONS)
