"""Prints what the structure of the product's code is.

python -m tools.structure                     a table of figures
python -m tools.structure --list WHAT         the places behind one of them
python -m tools.structure budgets [--write]   what is beside its budget; writes budgets anew
"""

import argparse

from tools.structure.budgets import budgets, measured, raised, with_room, write
from tools.structure.classes import counts, large_classes
from tools.structure.files import file_of, name_of
from tools.structure.flows import FLOWS, flows, modules_of
from tools.structure.sizes import LISTS, places, sizes


def table() -> list[tuple[str, str]]:
    """Rows of all figures: what is measured, and how much it is."""
    return [
        *sizes(),
        *((f"files in the flow of: {name}", str(count)) for name, count in flows().items()),
        ("classes over a limit of fields or methods", str(len(large_classes()))),
        *((name.replace("_", " "), str(count)) for name, count in counts().items()),
    ]


def listed(what: str) -> list[str]:
    """The places behind a figure."""
    if what in FLOWS:
        return [name_of(file_of(module)) for module in modules_of(FLOWS[what])]
    return list(places(what))


def main() -> None:
    """Prints the table, the places behind one of its figures, or what became of the budgets."""
    parser = argparse.ArgumentParser(description="Measures the structure of the product's code.")
    parser.add_argument("what", nargs="?", choices=["budgets"])
    parser.add_argument("--write", action="store_true", help="write the budgets anew")
    parser.add_argument("--list", choices=["functions", *LISTS, *FLOWS])
    given = parser.parse_args()
    if given.what:
        rose = write() if given.write else raised(budgets(), with_room(measured()))
        print("\n".join(["Above what was allowed:", *rose] if rose else ["Nothing rose."]))
    elif given.list:
        print("\n".join(listed(given.list)))
    else:
        print("| | measured |\n|---|---|")
        print("\n".join(f"| {name} | {value} |" for name, value in table()))


if __name__ == "__main__":
    main()
