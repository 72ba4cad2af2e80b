"""Measures the structure of the product's code: sizes, docstrings, words, and three walks.

    python -m tools.structure [--root DIR] [--list WHAT]

Prints the table of `docs/decisions/0014-a-room-for-each-process.md`. `--list docstrings`, `words`
or `functions` names the places behind a figure. Walks are lists of files in `tools/walks.toml`;
each entry names a definition that must exist in its file, so a stale walk fails.
"""

import argparse
import ast
import re
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("molink", "scheduler/molink_scheduler", "agent/molink_agent", "sim/molink_sim")
WALKS = Path(__file__).parent / "walks.toml"
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

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def product_files(root: Path) -> list[Path]:
    """Every Python file that the wheel ships, sorted."""
    return sorted(file for room in ROOMS for file in (root / room).rglob("*.py"))


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


def defines(tree: ast.Module, dotted: str) -> bool:
    """Whether a module defines a name: a function, a class, or `Class.method`."""
    first, _, rest = dotted.partition(".")
    for node in tree.body:
        if isinstance(node, DEFINITIONS) and node.name == first:
            return not rest or any(
                isinstance(child, DEFINITIONS) and child.name == rest for child in node.body
            )
    return False


def check_walk(root: Path, steps: list[str]) -> int:
    """The number of files of a walk. Ends the program where a step names what does not exist."""
    files = set()
    for step in steps:
        name, _, definition = step.partition(":")
        file = root / name
        if not file.is_file() or not defines(ast.parse(file.read_text()), definition):
            sys.exit(f"The walk is stale: {step} does not exist.")
        files.add(name)
    return len(files)


def percentile(values: list[int], share: float) -> int:
    """The smallest value that `share` of all values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def sizes(root: Path, files: list[Path]) -> list[tuple[str, str]]:
    """Rows on lines, folders, docstrings, words and functions."""
    trees = [ast.parse(file.read_text()) for file in files]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    folders = Counter(file.parent for file in files if file.name != "__init__.py")
    folder, most = folders.most_common(1)[0]
    spans = [size for tree in trees for size, _, _ in function_sizes(tree)]
    short = sum(1 for tree in trees for _ in short_docstrings(tree))
    odd = sum(1 for tree in trees for _ in odd_names(tree))
    middle, high = statistics.median(spans), percentile(spans, 0.9)
    return [
        ("product lines in the wheel / files", f"{lines:,} / {len(files)}"),
        ("files in the largest folder", f"{most} ({folder.relative_to(root)})"),
        ("public docstrings of three words or fewer", str(short)),
        ("identifiers with the former vocabulary", str(odd)),
        ("functions: median / p90 / max lines", f"{middle:g} / {high} / {max(spans)}"),
    ]


def walks(root: Path) -> list[tuple[str, str]]:
    """Rows on the walks of `tools/walks.toml`."""
    rows = []
    for walk in tomllib.loads(WALKS.read_text())["walk"]:
        files = check_walk(root, walk["steps"])
        count = str(len(walk["steps"]) if walk.get("count") == "steps" else files)
        if "spine" in walk:
            count += f" / {check_walk(root, walk['spine'])}"
        rows.append((walk["name"], count))
    return rows


LISTS = {"docstrings": short_docstrings, "words": odd_names}


def places(root: Path, what: str) -> Iterator[str]:
    """Lines that name the places behind a figure."""
    for file in product_files(root):
        tree = ast.parse(file.read_text())
        if what == "functions":
            for size, line, name in function_sizes(tree):
                yield f"{size:4} {file.relative_to(root)}:{line} {name}"
        else:
            for line, text in LISTS[what](tree):
                yield f"{file.relative_to(root)}:{line} {text}"


def main() -> None:
    """Prints the table, or the places behind one of its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--list", choices=["functions", *LISTS])
    given = parser.parse_args()
    if given.list:
        print("\n".join(places(given.root, given.list)))
        return
    rows = sizes(given.root, product_files(given.root))
    if WALKS.is_file():
        rows += walks(given.root)
    print("| | measured |\n|---|---|")
    print("\n".join(f"| {name} | {value} |" for name, value in rows))


if __name__ == "__main__":
    main()
