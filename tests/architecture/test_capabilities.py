"""A file knows at most two of the capabilities that were once woven through all of them.

Counted are identifiers, not words of documents. Files that are values or messages may name each;
those that still know three or more stand in `budgets.toml`, with how many, and are to know fewer.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("molink", "scheduler/molink_scheduler", "agent/molink_agent")
BUDGETS = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text(encoding="utf-8"))

CAPABILITIES = {
    "recovery": r"epoch|resum|recover",
    "prefix cache": r"cached|prefix|chain",
    "tiers": r"tier",
    "shadows": r"shadow",
    "snapshots of states": r"snapshot",
    "replay": r"replay",
    "prompt scores": r"score|prompt_logprob",
    "audits": r"audit|sketch",
    "a neighbour's layers": r"extension|extended|neighbour",
    "take-over": r"take_over|taken_over",
}
"""Identifiers of each capability, in lower case with underscores."""

NAMED_MIN = 2
"""Times that a file names a capability which it knows."""

KNOWN_MAX = 2

VALUES = (
    "molink/control/messages/",
    "molink/engine_protocol/",
    "molink/stage_protocol/",
    "molink/wire/frames.py",
    "scheduler/molink_scheduler/batch.py",
    "scheduler/molink_scheduler/events.py",
    "scheduler/molink_scheduler/head/settings.py",
    "scheduler/molink_scheduler/recording/values.py",
    "scheduler/molink_scheduler/recovery/events.py",
    "scheduler/molink_scheduler/recovery/instructions.py",
    "scheduler/molink_scheduler/recovery/members.py",
    "scheduler/molink_scheduler/recovery/state.py",
    "scheduler/molink_scheduler/resume.py",
)
"""Files and folders of values and messages, which hold what others decide."""


def identifiers(source: str) -> Iterator[str]:
    """Names of a file: of what it defines, takes, reads and imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.alias(name=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name


def known(source: str) -> list[str]:
    """Capabilities that a file knows."""
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", one).lower() for one in identifiers(source)]
    counts = {
        capability: sum(1 for name in names if re.search(pattern, name))
        for capability, pattern in CAPABILITIES.items()
    }
    return [capability for capability, count in counts.items() if count >= NAMED_MIN]


def test_no_file_knows_more_capabilities_than_it_may():
    found = dict[str, int]()
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            count = len(known(file.read_text(encoding="utf-8")))
            if count > KNOWN_MAX and not name.startswith(VALUES):
                found[name] = count
    assert found == BUDGETS["capabilities"], "put it behind a seam, or lower the budget"


def test_capabilities_are_counted_by_identifiers():
    three = "def keep_snapshot(tier, epoch):\n    return snapshot_of(tiers[epoch])\n"
    assert known(three) == ["recovery", "tiers", "snapshots of states"]
    assert known('"""Tiers, shadows and epochs."""\nx = shadow\n') == []
