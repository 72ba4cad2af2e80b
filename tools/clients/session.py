"""A session of twenty steps in a scratch folder, and what the folder holds at its end.

The steps are what agents do all day: create, read, edit and run files, with a command that fails,
text that is not ASCII, and folders within folders. They name no agent's tools (`tool_calls` does):
each agent writes the same folder with its own.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["FINAL", "HALF", "STEPS", "Create", "Edit", "Read", "Run", "Step", "difference"]


@dataclass(frozen=True, slots=True)
class Create:
    """A file is written."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Read:
    """A file is read."""

    path: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a file is replaced."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Run:
    """A command is run in the folder."""

    command: str


Step = Create | Read | Edit | Run

COUNT = 'lines = open("garden/plants.txt", encoding="utf-8").read().split()\nprint(len(lines))\n'
COUNT_LOUDLY = COUNT.replace("print(len(lines))", 'print(len(lines), "plants")')
MISSING = 'import sys\n\nprint("here now", sys.argv[1:])\n'
NOTES = '# Käse 🧀\n\nA "quoted" word, a \\ backslash,\ta tab, 日本語, <b>&amp;</b> and $HOME.\n'
JSON = '{"beds": [1, 2, {"deep": null}]}\n'

STEPS: tuple[Step, ...] = (
    Create("garden/plants.txt", "beans\npeas\n"),
    Read("garden/plants.txt"),
    Create("garden/count.py", COUNT),
    Run("python3 garden/count.py"),
    Edit("garden/plants.txt", "peas\n", "peas\nchard\n"),
    Run("python3 garden/count.py > garden/three.txt"),
    Run("python3 garden/missing.py"),
    Create("garden/missing.py", MISSING),
    Read("garden/missing.py"),
    Run("python3 garden/missing.py 'a b' > garden/out.txt"),
    Read("garden/plants.txt"),
    Edit("garden/plants.txt", "beans\n", "beans\nrunner-beans\n"),
    Run("python3 garden/count.py > garden/four.txt"),
    Create("notes.md", NOTES),
    Read("notes.md"),
    Edit("notes.md", "日本語", "日本語と中文"),
    Read("garden/count.py"),
    Edit("garden/count.py", "print(len(lines))", 'print(len(lines), "plants")'),
    Create("deep/er/beds.json", JSON),
    Run(
        "python3 -m json.tool deep/er/beds.json > /dev/null && python3 garden/count.py > total.txt"
    ),
)

HALF = len(STEPS) // 2
"""Here the first prompt's work ends; the second prompt goes on with the same session."""

FINAL = {
    "garden/plants.txt": "beans\nrunner-beans\npeas\nchard\n",
    "garden/count.py": COUNT_LOUDLY,
    "garden/three.txt": "3\n",
    "garden/missing.py": MISSING,
    "garden/out.txt": "here now ['a b']\n",
    "garden/four.txt": "4\n",
    "notes.md": NOTES.replace("日本語", "日本語と中文"),
    "deep/er/beds.json": JSON,
    "total.txt": "4 plants\n",
}
"""Text of each file at the end."""


def difference(folder: Path) -> str:
    """How a folder differs from what it should hold, in one sentence; empty: it does not. A missing
    newline at the end of a file is no difference: some tools drop it."""
    for path, text in FINAL.items():
        file = folder / path
        if not file.is_file():
            return f"{path} is missing"
        found = file.read_text(encoding="utf-8")
        if found.rstrip("\n") != text.rstrip("\n"):
            return f"{path} holds {found[:80]!r}, not {text[:80]!r}"
    return ""
