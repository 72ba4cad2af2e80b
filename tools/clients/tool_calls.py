"""A step of the session as a call of the tools that an agent offers.

Agents name the same few tools differently, and their parameters, too. The first tool whose name is
known does the step; parameters are filled by the names that are known for each, and other required
ones by their type. An agent that offers a shell alone does everything with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from tools.clients.session import Create, Edit, Read, Run, Step

__all__ = ["Call", "call_of_step", "filled", "has_shell"]

NAMES: Mapping[type, tuple[str, ...]] = {
    Create: ("Write", "write", "write_file", "write_to_file", "create_new_file"),
    Read: ("Read", "read", "read_file", "read_files"),
    Edit: ("Edit", "edit", "replace", "edit_file", "replace_in_file", "single_find_and_replace"),
    Run: (
        *("Bash", "bash", "run_shell_command", "exec_command", "shell", "shell_command"),
        *("execute_command", "run_terminal_command", "run_commands"),
    ),
}

PATH = frozenset({"path", "file_path", "filePath", "filepath", "absolute_path", "target_file"})
TEXT = frozenset({"content", "contents", "text", "file_text"})
OLD = frozenset({"old_string", "oldString", "old_str", "oldText", "old_text"})
NEW = frozenset({"new_string", "newString", "new_str", "newText", "new_text"})
COMMAND = frozenset({"command", "cmd", "script"})

ANYTHING: Mapping[str, Any] = {
    "string": "Oldford",
    "integer": 21,
    "number": 21,
    "boolean": False,
    "array": [],
    "object": {},
}


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a tool, as a model writes it."""

    name: str
    arguments: Mapping[str, Any]


def has_shell(tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether tools, as chat templates see them, can run commands: then an agent asks."""
    return _tool(tools, NAMES[Run]) is not None


def call_of_step(step: Step, tools: Sequence[Mapping[str, Any]], root: Path) -> Call:
    """The call that does a step in the folder `root`."""
    tool = _tool(tools, NAMES[type(step)])
    if tool is None:
        step = Run(_in_shell(step))
        tool = _tool(tools, NAMES[Run])
    assert tool is not None, "an agent has a shell"
    return Call(tool["name"], _arguments(tool, _values(step, root)))


def _tool(tools: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Mapping[str, Any] | None:
    offered = {tool["function"]["name"]: tool["function"] for tool in tools}
    return next((offered[name] for name in names if name in offered), None)


def _values(step: Step, root: Path) -> dict[frozenset[str], str]:
    match step:
        case Create(path, text):
            return {PATH: str(root / path), TEXT: text}
        case Read(path):
            return {PATH: str(root / path)}
        case Edit(path, old, new):
            return {PATH: str(root / path), OLD: old, NEW: new}
        case Run(command):
            return {COMMAND: command}


def _arguments(tool: Mapping[str, Any], values: Mapping[frozenset[str], str]) -> dict[str, Any]:
    schema = tool.get("parameters") or {}
    required = schema.get("required") or ()
    arguments = {}
    for name, inner in (schema.get("properties") or {}).items():
        known = next((value for names, value in values.items() if name in names), None)
        if known is not None:
            arguments[name] = ["bash", "-lc", known] if inner.get("type") == "array" else known
        elif inner.get("type") == "array" and name in ("edits", "files", "file_paths", "commands"):
            arguments[name] = [_item(inner.get("items") or {}, values)]
        elif name in required:
            arguments[name] = filled(name, inner)
    return arguments


def _item(schema: Mapping[str, Any], values: Mapping[frozenset[str], str]) -> Any:
    """One entry of a list of edits, files or commands."""
    if schema.get("properties"):
        return _arguments({"parameters": schema}, values)
    return next(iter(values.values()))


KNOWN: Mapping[str, Any] = {"town": "Oldford", "degrees": 21, "title": "A garden"}


def filled(name: str, schema: Mapping[str, Any]) -> Any:
    """A value for a parameter of which only the schema is known."""
    if name in KNOWN:
        return KNOWN[name]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if kind == "object":
        inner = schema.get("properties") or {}
        return {key: filled(key, one) for key, one in inner.items()}
    return ANYTHING.get(kind if isinstance(kind, str) else kind[0], "Oldford")


def _in_shell(step: Step) -> str:
    """A step as a command."""
    match step:
        case Create(path, text):
            folder = quote(str(Path(path).parent))
            return f"mkdir -p {folder} && printf %s {quote(text)} > {quote(path)}"
        case Read(path):
            return f"cat {quote(path)}"
        case Edit(path, old, new):
            program = (
                "import sys, pathlib; p = pathlib.Path(sys.argv[1]); "
                "p.write_text(p.read_text().replace(sys.argv[2], sys.argv[3]))"
            )
            return f"python3 -c {quote(program)} {quote(path)} {quote(old)} {quote(new)}"
        case Run(command):
            return command
