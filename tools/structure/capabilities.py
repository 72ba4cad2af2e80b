"""Which of the capabilities that were once woven through all files a file knows.

Counted are identifiers, not words of documents.
"""

import ast
import re
from collections.abc import Iterator

from tools.structure.files import name_of, product_files, source_of

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


def is_value(name: str) -> bool:
    """Whether a file holds values or messages alone."""
    return name.startswith(VALUES)


def knowing_files() -> dict[str, int]:
    """Files that know more than KNOWN_MAX capabilities, and how many; the simulator's and values
    excepted."""
    names = {name_of(file): file for file in product_files()}
    counts = {
        name: len(known(source_of(file)))
        for name, file in names.items()
        if not name.startswith("sim/") and not is_value(name)
    }
    return {name: count for name, count in counts.items() if count > KNOWN_MAX}
