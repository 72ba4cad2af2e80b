"""Files and modules of the product, and their imports."""

import ast
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]

PACKAGES = {
    "molink": "molink",
    "molink_scheduler": "scheduler/molink_scheduler",
    "molink_agent": "agent/molink_agent",
    "molink_sim": "sim/molink_sim",
}
"""Folder of each package."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def name_of(file: Path) -> str:
    """Path of a file as budgets and reports name it."""
    return file.relative_to(ROOT).as_posix()


def product_files() -> list[Path]:
    """Every Python file of the product, package by package, sorted in each."""
    return [file for path in PACKAGES.values() for file in sorted((ROOT / path).rglob("*.py"))]


def source_of(file: Path) -> str:
    """Text of a file."""
    return file.read_text(encoding="utf-8")


@cache
def tree_of(file: Path) -> ast.Module:
    """Syntax tree of a file; read once."""
    return ast.parse(source_of(file))


def lines_of(file: Path) -> int:
    """Number of lines of a file."""
    return len(source_of(file).splitlines())


def file_of(module: str) -> Path:
    """The file of a module of the product."""
    package, _, rest = module.partition(".")
    path = ROOT / PACKAGES[package] / rest.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


@cache
def imports() -> grimp.ImportGraph:
    """Imports of the whole product, those for types included; built once."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def read_for(*modules: str) -> set[str]:
    """Modules that somebody who changes the given ones reads at most: these, all that they import,
    and what that imports."""
    return {*modules}.union(*map(imports().find_upstream_modules, modules))
