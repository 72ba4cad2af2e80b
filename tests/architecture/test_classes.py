"""Classes stay within 12 fields and 20 methods, and say what they are, by names of their own.

`budgets.toml` names those over a limit, with their figure, and three figures of the whole product.
"""

import ast

import pytest

from tools.structure.budgets import beside_budget, budgets, flat
from tools.structure.classes import (
    FIELDS_MAX,
    METHODS_MAX,
    classes,
    counts,
    excess,
    fragments,
    large_classes,
    names_twice,
    untyped,
)

COUNTS_SLACK = 5
"""Figures that a count may be below its budget before the budget must be lowered."""


def excess_of(source: str, *, value: bool = False) -> dict[str, int]:
    (node,) = classes(ast.parse(source))
    return excess(node, value=value)


def test_classes_are_within_their_limits():
    found = flat(large_classes())
    assert not list(beside_budget(found, flat(budgets()["classes"]), "parts", slack=0))


def test_what_the_whole_product_counts_does_not_rise():
    assert not list(beside_budget(counts(), budgets()["counts"], "places", COUNTS_SLACK))


def test_a_budget_falls_with_its_class():
    large = {"a.py:A fields": 14}
    assert not list(beside_budget(large, {"a.py:A fields": 14}, slack=0))
    (more,) = beside_budget({"a.py:A fields": 15}, large, slack=0)
    assert "has 15" in more
    (fewer,) = beside_budget({}, large, slack=0)
    assert "lower its budget" in fewer


DECLARED = "\n".join(f"    a{number}: int" for number in range(FIELDS_MAX))
ASSIGNED = (
    "\n    def __init__(self):\n        self.one, self.other.two = 1, 2\n        self.a0 = 3\n"
)
METHODS = "\n".join(f"    def m{number}(self): ..." for number in range(METHODS_MAX + 1))


def test_a_class_with_a_field_too_many_is_found():
    assert excess_of(f"class A:\n{DECLARED}\n") == {}
    assert excess_of(f"class A:\n{DECLARED}\n    b: ClassVar[int] = 1\n    C = 2\n") == {}
    assert excess_of(f"class A:\n{DECLARED}{ASSIGNED}") == {"fields": FIELDS_MAX + 1}


def test_values_have_any_fields_but_no_more_methods_than_others():
    source = f"class A:\n{DECLARED}\n    more: int\n{METHODS}"
    both = {"fields": FIELDS_MAX + 1, "methods": METHODS_MAX + 1}
    assert excess_of(source) == both
    assert excess_of(f"@dataclass(slots=True)\n{source}") == both
    assert excess_of(source, value=True) == {"methods": METHODS_MAX + 1}
    assert excess_of(f"@dataclass(frozen=True)\n{source}") == {"methods": METHODS_MAX + 1}


def test_a_name_of_two_classes_is_found():
    sources = ("class A: ...\nclass B:\n    class A: ...", "class B: ...", "def A(): ...")
    assert names_twice(map(ast.parse, sources)) == ["B"]


def test_a_type_that_says_nothing_is_found():
    source = "a: dict[str, Any] = {}\ndef f(b: list[dict[str, Any]], c: dict[str, int]): ...\n"
    assert list(untyped(ast.parse(source))) == [1, 2]


@pytest.mark.parametrize(
    ("docstring", "is_fragment"),
    [
        ("Of one ring.", True),
        ("Which model is served.", True),
        ("...and all others.", True),
        ("Office of a ring.", False),
        ("Ring that serves.", False),
    ],
)
def test_a_class_that_is_told_in_a_fragment_is_found(docstring, is_fragment):
    tree = ast.parse(f'class A:\n    """{docstring}"""\n\ndef f():\n    """Of no class."""\n')
    assert [name for _, name in fragments(tree)] == (["A"] if is_fragment else [])
