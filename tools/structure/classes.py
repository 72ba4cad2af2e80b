"""How large classes are, how often a name is theirs twice, and where types say nothing.

A field is what a class declares, or what one of its methods assigns to `self`; a method is each
function of its body, properties included. A value may have many fields, since it does nothing with
them: those are frozen dataclasses, and classes in files of values, settings and bodies.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from tools.structure.capabilities import is_value
from tools.structure.files import name_of, product_files, tree_of

FIELDS_MAX, METHODS_MAX = 12, 20

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

DECLARED = ("molink/config/groups.py", "molink/config/settings.py", "schemas.py")
"""Endings of files of groups of settings, and of bodies of HTTP requests."""

FRAGMENT = re.compile(
    r"(And|As|Because|But|By|For|From|If|In|Of|On|Or|Since|That|To|Until|When|Where|Which|Who|Whose"
    r"|With|Without)\b|\.\.\.|…"
)
"""Beginnings of a docstring that goes on from something else."""


@cache
def classes(tree: ast.Module) -> tuple[ast.ClassDef, ...]:
    """All classes of a module, nested ones too; looked up once."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def fields_of(node: ast.ClassDef) -> set[str]:
    """Names of a class's fields; constants of the class are none."""
    found = set()
    for part in node.body:
        match part:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                if "ClassVar" not in ast.unparse(kind):
                    found.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found |= set(assigned_to_self(part))
    return found


def assigned_to_self(function: ast.AST) -> Iterator[str]:
    """Attributes of `self` that a method assigns."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def is_frozen(node: ast.ClassDef) -> bool:
    """Whether a class is a frozen dataclass."""
    return any("frozen=True" in ast.unparse(one) for one in node.decorator_list)


def excess(node: ast.ClassDef, *, value: bool) -> dict[str, int]:
    """Fields and methods of a class where it has more than it may; a value has any fields."""
    methods = sum(1 for part in node.body if isinstance(part, FUNCTIONS))
    found = {}
    if (fields := len(fields_of(node))) > FIELDS_MAX and not (value or is_frozen(node)):
        found["fields"] = fields
    if methods > METHODS_MAX:
        found["methods"] = methods
    return found


def large_classes() -> dict[str, dict[str, int]]:
    """Classes of the product over a limit, and by how many fields or methods they are."""
    found = {}
    for file in product_files():
        name = name_of(file)
        value = is_value(name) or name.endswith(DECLARED)
        for node in classes(tree_of(file)):
            if over := excess(node, value=value):
                found[f"{name}:{node.name}"] = over
    return found


def names_twice(trees: Iterable[ast.Module]) -> list[str]:
    """Names that classes of two or more modules have."""
    counts = Counter(name for tree in trees for name in {node.name for node in classes(tree)})
    return sorted(name for name, count in counts.items() if count > 1)


def untyped(tree: ast.Module) -> Iterator[int]:
    """Lines with a `dict[str, Any]`, a type that does not say what is in it."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                value=ast.Name(id="dict"),
                slice=ast.Tuple(elts=[ast.Name(id="str"), ast.Name(id="Any")]),
            ):
                yield node.lineno


def fragments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each class whose docstring begins as a fragment."""
    for node in classes(tree):
        if FRAGMENT.match(ast.get_docstring(node) or ""):
            yield node.lineno, node.name


def counts() -> dict[str, int]:
    """Figures of the whole product that are to fall."""
    trees = [tree_of(file) for file in product_files()]
    return {
        "class_docstrings_that_are_fragments": sum(1 for one in trees for _ in fragments(one)),
        "class_names_in_two_files_or_more": len(names_twice(trees)),
        "dict_str_any": sum(1 for one in trees for _ in untyped(one)),
    }
