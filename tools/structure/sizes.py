"""Sizes of files, folders and functions, docstrings that say little, and odd identifiers."""

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.structure.files import (
    DEFINITIONS,
    Definition,
    lines_of,
    name_of,
    product_files,
    tree_of,
)

DOCSTRING_WORDS_MIN = 4
"""A docstring of three words or fewer does not say what a thing is when it is read alone."""

WORDS = {
    *("seat", "seats", "seated", "seating", "household", "carpenter", "errand", "shelf", "desk"),
    *("door", "doors", "bury", "forsake", "forsaken", "onlooker", "lives", "voice", "told"),
    *("tell", "tells", "telling", "said", "say", "says", "saying", "hear", "heard", "obey"),
    *("ways", "way", "doubts", "doubt", "claims", "resting", "hands", "taking", "enough"),
    *("look", "looks", "looked", "circle"),
}
"""Words of the former private vocabulary; identifiers consist of the field's terms instead."""

TERMS = ("one_way", "under_way", "looks_like", "say_hello")
"""Terms of the field that hold such a word."""

PHRASES = ("come_home", "came_home", "at_home", "held_back", "let_rest", "decode_circle", "let_in")


def definitions(tree: ast.Module) -> Iterator[Definition]:
    """All functions and classes of a module, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, DEFINITIONS))


def short_docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each public definition whose docstring has three words or fewer."""
    for node in definitions(tree):
        text = ast.get_docstring(node)
        if text and not node.name.startswith("_") and len(text.split()) < DOCSTRING_WORDS_MIN:
            yield node.lineno, f"{node.name}: {text!r}"


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of all that a module names: definitions, parameters, attributes, variables."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words_of(name: str) -> list[str]:
    """The words of an identifier in snake or camel case, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def is_private_vocabulary(name: str) -> bool:
    """Whether a newcomer would not search for this name."""
    text = "_".join(words_of(name))
    for term in TERMS:
        text = text.replace(term, "")
    return bool(WORDS & set(text.split("_"))) or any(phrase in text for phrase in PHRASES)


def odd_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each identifier that uses the former private vocabulary."""
    return ((line, name) for line, name in defined_names(tree) if is_private_vocabulary(name))


def function_sizes(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Size in lines, line and name of each function."""
    for node in definitions(tree):
        if not isinstance(node, ast.ClassDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.lineno, node.name


def percentile(values: list[int], share: float) -> int:
    """The smallest value that `share` of all values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def sizes() -> list[tuple[str, str]]:
    """Rows on lines, folders, docstrings, words and functions."""
    files = product_files()
    trees = [tree_of(file) for file in files]
    folder, most = _largest_folder(files)
    spans = [size for tree in trees for size, _, _ in function_sizes(tree)]
    short = sum(1 for tree in trees for _ in short_docstrings(tree))
    odd = sum(1 for tree in trees for _ in odd_names(tree))
    middle, high = statistics.median(spans), percentile(spans, 0.9)
    return [
        ("product lines in the wheel / files", f"{sum(map(lines_of, files)):,} / {len(files)}"),
        ("files in the largest folder", f"{most} ({name_of(folder)})"),
        ("public docstrings of three words or fewer", str(short)),
        ("identifiers with the former vocabulary", str(odd)),
        ("functions: median / p90 / max lines", f"{middle:g} / {high} / {max(spans)}"),
    ]


def _largest_folder(files: list[Path]) -> tuple[Path, int]:
    folders = Counter(file.parent for file in files if file.name != "__init__.py")
    return folders.most_common(1)[0]


LISTS = {"docstrings": short_docstrings, "words": odd_names}


def places(what: str) -> Iterator[str]:
    """Lines that name the places behind a figure."""
    for file in product_files():
        if what == "functions":
            for size, line, name in function_sizes(tree_of(file)):
                yield f"{size:4} {name_of(file)}:{line} {name}"
        else:
            for line, text in LISTS[what](tree_of(file)):
                yield f"{name_of(file)}:{line} {text}"
